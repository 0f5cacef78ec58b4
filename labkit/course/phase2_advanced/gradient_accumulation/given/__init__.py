"""Given parts of the exercise on gradient accumulation."""
