"""What learners do not have for `zero`: hidden checks, wrong and other right solutions."""
