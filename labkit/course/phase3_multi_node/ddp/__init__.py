"""What learners have for `ddp`: given parts, visible checks, questions."""
