"""What a learner reads about their submission: the graded cell's outputs, and the page that nbgrader hands back.

outputs.py    a verdict as outputs of the graded cell
pictures.py   the submission's own runs, drawn
page.py       nbgrader's feedback page, made of the graded notebook; page.html.j2 and page.css are its looks
code.py       the learner's cell with line numbers, failing lines marked
command.py    `labkit verdict`, which shows instructors what pages keep back
"""

from autograder.feedback.outputs import FEEDBACK, for_learner, outputs

__all__ = ["FEEDBACK", "for_learner", "outputs"]
