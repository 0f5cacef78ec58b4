"""What learners do not have for `autotune`: hidden checks, wrong and other right solutions."""
