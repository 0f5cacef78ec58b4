"""Links, GPUs."""
