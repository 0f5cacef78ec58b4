"""What learners do not have for each exercise: its hidden checks, and the solutions that test them."""
