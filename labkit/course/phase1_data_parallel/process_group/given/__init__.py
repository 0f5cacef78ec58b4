"""Given parts of the exercise on process groups."""
