"""What learners do not have for `monitoring`: hidden checks, wrong and other right solutions."""
