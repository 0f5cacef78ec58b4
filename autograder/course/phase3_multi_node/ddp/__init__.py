"""What learners do not have for `ddp`: hidden checks, wrong and other right solutions."""
