"""What learners have for `parameter_server`: given parts, visible checks, questions."""
