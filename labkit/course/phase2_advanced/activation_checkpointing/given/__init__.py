"""Given parts of the exercise on activation checkpointing."""
