"""Given parts, visible checks and questions of exercise `process_group`."""
