"""What learners do not have for `parallel_3d`: hidden checks, wrong and other right solutions."""
