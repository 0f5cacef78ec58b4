"""What learners have for `expert_parallel`: given parts, visible checks, questions."""
