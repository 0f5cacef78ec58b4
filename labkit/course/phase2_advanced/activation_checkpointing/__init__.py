"""Given parts, visible checks and questions of exercise `activation_checkpointing`."""
