"""Given parts, visible checks and questions of exercise `collectives`."""
