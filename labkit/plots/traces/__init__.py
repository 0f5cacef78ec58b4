"""Pictures of traces: time, memory and traffic of runs."""
