"""Given parts of the exercise on tensor parallelism."""
