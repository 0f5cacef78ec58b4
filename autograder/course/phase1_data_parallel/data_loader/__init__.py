"""What learners do not have for `data_loader`: hidden checks, wrong and other right solutions."""
