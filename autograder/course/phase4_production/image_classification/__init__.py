"""What learners do not have for `image_classification`: hidden checks, wrong and other right solutions."""
