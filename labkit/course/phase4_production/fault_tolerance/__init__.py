"""Given parts, visible checks and questions of exercise `fault_tolerance`."""
