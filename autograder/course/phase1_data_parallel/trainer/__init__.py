"""What learners do not have for `trainer`: hidden checks, wrong and other right solutions."""
