"""What learners do not have for `context_parallel`: hidden checks, wrong and other right solutions."""
