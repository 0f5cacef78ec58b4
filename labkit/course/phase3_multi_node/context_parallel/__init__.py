"""Given parts, visible checks and questions of exercise `context_parallel`."""
