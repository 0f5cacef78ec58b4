"""What learners have for `image_classification`: given parts, visible checks, questions."""
