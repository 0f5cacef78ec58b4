"""Given parts, visible checks and questions of exercise `pipeline_parallel`."""
