"""What learners have for `activation_checkpointing`: given parts, visible checks, questions."""
