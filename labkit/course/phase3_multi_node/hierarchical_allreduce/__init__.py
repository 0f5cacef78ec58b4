"""What learners have for `hierarchical_allreduce`: given parts, visible checks, questions."""
