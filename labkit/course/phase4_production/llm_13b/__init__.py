"""Given parts, visible checks and questions of exercise `llm_13b`."""
