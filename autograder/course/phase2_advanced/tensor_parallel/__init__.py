"""What learners do not have for `tensor_parallel`: hidden checks, wrong and other right solutions."""
