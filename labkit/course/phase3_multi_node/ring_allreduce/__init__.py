"""Given parts, visible checks and questions of exercise `ring_allreduce`."""
