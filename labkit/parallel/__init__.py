"""What the exercises' solutions take as given: checks of arguments and other plumbing that is not their subject."""
