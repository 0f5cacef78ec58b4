"""What learners have for `pipeline_parallel`: given parts, visible checks, questions."""
