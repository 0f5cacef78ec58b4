"""Feedback for learners on their submissions: the graded cell's outputs, and the page that nbgrader returns.

outputs.py    a verdict as outputs of the graded cell
pictures.py   pictures of the submission's own runs
page.py       nbgrader's feedback page, made from the graded notebook, with page.html.j2 and page.css
generate.py   nbgrader's GenerateFeedback, with pages for what the lab failed to judge
code.py       the learner's cell with line numbers, failing lines marked
command.py    `labkit verdict`, which shows instructors what the pages omit
"""

from autograder.feedback.outputs import FEEDBACK, for_learner, outputs

__all__ = ["FEEDBACK", "for_learner", "outputs"]
