"""Given parts of the exercise on loading data."""
