"""Given parts of the exercise on ZeRO."""
