"""Given parts, visible checks and questions of exercise `parallel_3d`."""
