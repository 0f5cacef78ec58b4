"""What learners do not have for `fault_tolerance`: hidden checks, wrong and other right solutions."""
