"""Given parts, visible checks and questions of exercise `tensor_parallel`."""
