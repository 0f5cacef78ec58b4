"""Questions of the notebooks: predict, then reveal.

Each exercise has a file `PHASE/NAME.py` here with `QUESTIONS`, a list of `Number`, `Choice` and `Line`. A notebook asks
one with `%question NAME`, where the learner answers it; names are unique in the course. Questions carry no points.

    exercise, question = find("tree_rounds")
    reply = question.judge("2 * 10", names)        # names: the variables of the learner's notebook
    reply.verdict, reply.text
    answered("tree_rounds")                        # what the learner last answered: 20.0, or None
"""

from labkit.questions.answers import Attempt, answered, attempt_at, save
from labkit.questions.definitions import UnknownQuestion, find, questions_of, questions_path
from labkit.questions.kinds import Choice, Line, Number, Question, Reply, Verdict

__all__ = [
    "Attempt",
    "Choice",
    "Line",
    "Number",
    "Question",
    "Reply",
    "UnknownQuestion",
    "Verdict",
    "answered",
    "attempt_at",
    "find",
    "questions_of",
    "questions_path",
    "save",
]
