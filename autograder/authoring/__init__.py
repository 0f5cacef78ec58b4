"""Tools for authors of exercises: a check that each exercise is whole, and the files of a new one."""
