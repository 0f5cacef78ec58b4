"""What learners have for `data_loader`: given parts, visible checks, questions."""
