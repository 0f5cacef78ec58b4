"""What learners have for `checkpointing`: given parts, visible checks, questions."""
