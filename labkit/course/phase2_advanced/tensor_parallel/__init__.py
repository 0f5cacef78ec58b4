"""What learners have for `tensor_parallel`: given parts, visible checks, questions."""
