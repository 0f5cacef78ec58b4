"""Given parts, visible checks and questions of exercise `expert_parallel`."""
