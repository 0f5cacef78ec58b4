"""What learners have for `fault_tolerance`: given parts, visible checks, questions."""
