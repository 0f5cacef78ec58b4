"""For authors of exercises: whether each exercise is whole, and the files of a new one."""
