"""Given parts, visible checks and questions of exercise `data_loader`."""
