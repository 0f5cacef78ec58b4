"""What learners have for `llm_13b`: given parts, visible checks, questions."""
