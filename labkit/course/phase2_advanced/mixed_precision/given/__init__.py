"""Given parts of the exercise on mixed precision."""
