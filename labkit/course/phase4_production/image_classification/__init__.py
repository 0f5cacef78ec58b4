"""Given parts, visible checks and questions of exercise `image_classification`."""
