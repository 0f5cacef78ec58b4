"""What learners do not have for `activation_checkpointing`: hidden checks, wrong and other right solutions."""
