"""What learners do not have for `expert_parallel`: hidden checks, wrong and other right solutions."""
