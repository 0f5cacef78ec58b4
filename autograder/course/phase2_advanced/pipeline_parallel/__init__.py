"""What learners do not have for `pipeline_parallel`: hidden checks, wrong and other right solutions."""
