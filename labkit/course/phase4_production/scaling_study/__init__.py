"""Given parts, visible checks and questions of exercise `scaling_study`."""
