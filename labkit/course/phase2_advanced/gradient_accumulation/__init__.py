"""What learners have for `gradient_accumulation`: given parts, visible checks, questions."""
