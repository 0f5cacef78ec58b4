"""Given parts, visible checks and questions of exercise `mixed_precision`."""
