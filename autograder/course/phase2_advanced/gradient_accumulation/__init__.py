"""What learners do not have for `gradient_accumulation`: hidden checks, wrong and other right solutions."""
