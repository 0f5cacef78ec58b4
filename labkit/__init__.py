"""labkit: learn distributed training by writing it."""
