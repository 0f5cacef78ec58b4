"""An exchange that users of a system share: what one of them reaches of another's, after submission and feedback."""

from __future__ import annotations

import second_exercise
from small_classroom import Classroom
from unix_users import Users, as_user

PHASE = second_exercise.PHASE


def what_others_reach(classroom: Classroom, users: Users) -> None:
    """Let the second user try what the first one's and the instructor's permissions must refuse."""
    owner, other = users.names[:2]
    course = users.folder / "exchange/small-course"
    (submission,) = [one for one in (course / "inbound").iterdir() if one.name.startswith(f"{owner}+")]
    assert submission.owner() == owner
    assert len(list((course / "feedback").glob("*.html"))) == 2
    for part in ("inbound", "feedback"):
        tried = as_user(other, "ls", str(course / part))
        assert tried.returncode != 0 and tried.stdout == "", tried
    assert as_user(other, "ls", str(course / "outbound")).stdout == f"{PHASE}\n"
    for path in ("outbound/x", f"outbound/{PHASE}/x", "feedback/x", "x"):
        assert as_user(other, "touch", str(course / path)).returncode != 0, path
    assert as_user(other, "mv", str(course), f"{course}-gone").returncode != 0, "the folder above belongs to all"
    for path in (classroom.folder, users.home(owner)):
        assert as_user(other, "ls", str(path)).returncode != 0, path
