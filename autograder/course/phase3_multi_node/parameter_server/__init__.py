"""What learners do not have for `parameter_server`: hidden checks, wrong and other right solutions."""
