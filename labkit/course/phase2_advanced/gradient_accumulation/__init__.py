"""Given parts, visible checks and questions of exercise `gradient_accumulation`."""
