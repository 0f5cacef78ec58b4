"""What learners do not have for `gradient_compression`: hidden checks, wrong and other right solutions."""
