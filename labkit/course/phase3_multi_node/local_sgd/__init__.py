"""Given parts, visible checks and questions of exercise `local_sgd`."""
