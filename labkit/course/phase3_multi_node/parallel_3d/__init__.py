"""What learners have for `parallel_3d`: given parts, visible checks, questions."""
