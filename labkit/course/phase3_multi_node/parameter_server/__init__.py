"""Given parts, visible checks and questions of exercise `parameter_server`."""
