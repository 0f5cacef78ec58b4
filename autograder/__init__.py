"""The grader, for instructors: nbgrader keeps the course, this package executes and scores what learners hand in."""
