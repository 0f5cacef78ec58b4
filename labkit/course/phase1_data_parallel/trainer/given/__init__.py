"""Given parts of the exercise on the data-parallel trainer."""
