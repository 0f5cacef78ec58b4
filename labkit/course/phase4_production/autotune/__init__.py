"""What learners have for `autotune`: given parts, visible checks, questions."""
