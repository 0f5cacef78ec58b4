"""What learners do not have for `llm_13b`: hidden checks, wrong and other right solutions."""
