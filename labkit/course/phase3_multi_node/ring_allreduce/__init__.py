"""What learners have for `ring_allreduce`: given parts, visible checks, questions."""
