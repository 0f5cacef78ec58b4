"""What learners do not have for `ring_allreduce`: hidden checks, wrong and other right solutions."""
