"""Given parts, visible checks and questions of exercise `hierarchical_allreduce`."""
