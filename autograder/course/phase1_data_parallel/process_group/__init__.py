"""What learners do not have for `process_group`: hidden checks, wrong and other right solutions."""
