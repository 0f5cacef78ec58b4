"""What learners have for `gradient_compression`: given parts, visible checks, questions."""
