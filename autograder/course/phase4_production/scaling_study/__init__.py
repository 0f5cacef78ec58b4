"""What learners do not have for `scaling_study`: hidden checks, wrong and other right solutions."""
