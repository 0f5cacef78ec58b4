"""A learner's progress: results of checks and answers to questions, saved in the workspace, and the course home.

record_check("trainer", earned=17, points=25)                    # each time the learner's module is checked
record_answer("trainer", "step-time", tries=2, right=True)       # each time a question is answered
recorded("trainer").checked.best, answers("trainer")["step-time"].tries
record_place(exercise, cell, heading)                            # each time the learner works in another cell
course_progress().next                                           # where to continue
write_home()                                                     # the page `HOME.md`; recording does it, too
"""

from labkit.progress.course import CourseProgress, ExerciseProgress, course_progress, untouched_course
from labkit.progress.home import HOME, LAB_EXTENSIONS, home_path, page, write_home
from labkit.progress.recording import answers, record_answer, record_check, record_place
from labkit.progress.store import Answer, Checked, FailedCheck, Record, recorded, save_pass

__all__ = [
    "HOME",
    "LAB_EXTENSIONS",
    "Answer",
    "Checked",
    "CourseProgress",
    "ExerciseProgress",
    "FailedCheck",
    "Record",
    "answers",
    "course_progress",
    "home_path",
    "page",
    "record_answer",
    "record_check",
    "record_place",
    "recorded",
    "save_pass",
    "untouched_course",
    "write_home",
]
