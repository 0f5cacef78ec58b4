"""What learners do not have for `mixed_precision`: hidden checks, wrong and other right solutions."""
