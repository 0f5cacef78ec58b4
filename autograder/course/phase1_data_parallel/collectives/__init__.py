"""What learners do not have for `collectives`: hidden checks, wrong and other right solutions."""
