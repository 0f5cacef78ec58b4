"""Given parts of the exercise on pipeline parallelism."""
