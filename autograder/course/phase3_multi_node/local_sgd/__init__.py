"""What learners do not have for `local_sgd`: hidden checks, wrong and other right solutions."""
