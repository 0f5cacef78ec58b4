"""What learners do not have for `hierarchical_allreduce`: hidden checks, wrong and other right solutions."""
