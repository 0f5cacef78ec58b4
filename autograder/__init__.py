"""The autograder, for instructors: nbgrader manages the course; this package runs and scores submissions."""
