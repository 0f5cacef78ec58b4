"""What learners have for each exercise, besides its notebook and template; what several share is beside the phases."""
