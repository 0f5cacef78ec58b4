"""What learners do not have for `checkpointing`: hidden checks, wrong and other right solutions."""
