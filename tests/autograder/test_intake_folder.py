"""A submission's folder can hold anything: the result is one notebook for each released one, and why."""

from __future__ import annotations

import json
import os
import pwd
import socket
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import nbformat
import pytest
import second_exercise
from hypothesis import given, settings
from hypothesis import strategies as st

from autograder.intake import Intake, IntakeFailed, Limits, Release, read_release, receive
from autograder.intake.folder import chunks, opened, walk
from autograder.intake.limits import EntryRefused, FilesChanged
from autograder.intake.stamps import FORMAT, Record, told_time
from autograder.submissions import with_module

NAME = second_exercise.NOTEBOOK
FILE = f"{NAME}.ipynb"
RELEASED = second_exercise.notebook(second_exercise.NAME, "x = 'template'\n", points=3)
RELEASE = Release({NAME: RELEASED}, frozenset({FILE, "data/text.csv"}))
WORK = nbformat.writes(with_module(RELEASED, second_exercise.NAME, "x = 'mine'\n"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "submitted"
    folder.mkdir()
    return folder


def taken(intake: Intake, release: Release = RELEASE) -> str:
    """Return the learner's module, when all else is as released."""
    assert set(intake.notebooks) == set(release.notebooks)
    for notebook in intake.notebooks.values():
        nbformat.validate(notebook)
        assert [cell.id for cell in notebook.cells] == [cell.id for cell in RELEASED.cells]
    assert all(note.isprintable() for note in intake.notes)
    source: str = intake.notebooks[NAME].cells[2].source
    return source.split("\n", 1)[1].strip()


def test_an_ordinary_submission_has_nothing_to_note(folder: Path) -> None:
    (folder / FILE).write_text(WORK)
    (folder / "timestamp.txt").write_text("2026-11-21 10:00:00.5 CET")
    (folder / "submission_secret.txt").write_text("0" * 128)
    (folder / "data").mkdir()
    (folder / "data" / "text.csv").write_text("1")
    (folder / ".ipynb_checkpoints").mkdir()
    (folder / ".ipynb_checkpoints" / FILE).write_text(WORK)
    intake = receive(folder, RELEASE)
    assert taken(intake) == "x = 'mine'" and intake.notes == ()
    assert intake.handed_in == datetime(2026, 11, 21, 9, 0, 0, 500_000) and not intake.recorded
    again = receive(folder, RELEASE)
    assert again == intake
    (folder / "data" / "text.csv").write_text("2")
    assert receive(folder, RELEASE).content_hash != intake.content_hash


def hard_link(path: Path, secret: Path) -> None:
    os.link(secret, path)


def unix_socket(path: Path, _: Path) -> None:
    home = os.getcwd()
    os.chdir(path.parent)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(path.name)
    os.chdir(home)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda path, secret: path.symlink_to(secret), "it is a link"),
        (lambda path, secret: path.symlink_to("/dev/zero"), "it is a link"),
        (lambda path, secret: path.symlink_to(path), "it is a link"),
        (hard_link, "it is a hard link"),
        (lambda path, secret: os.mkfifo(path), "it is not a regular file"),
        (unix_socket, "it is not a regular file"),
        (lambda path, secret: path.mkdir(), "is a folder, not a notebook"),
        (lambda path, secret: path.touch(), "not a notebook"),
        (lambda path, secret: os.truncate(os.open(path, os.O_WRONLY | os.O_CREAT), 1 << 40), "larger than 50 MB"),
    ],
)
def test_what_is_no_plain_file_is_not_read(make: Callable[[Path, Path], object], why: str, folder: Path) -> None:
    secret = folder.parent / "secret.ipynb"
    secret.write_text(WORK)
    make(folder / FILE, secret)
    make(folder / "timestamp.txt", secret)
    intake = receive(folder, RELEASE)
    assert taken(intake) == "" and "`timestamp.txt` has no valid time" in intake.time_problem
    assert intake.handed_in is not None and intake.time_problem in intake.notes
    assert any(why in note for note in intake.notes), intake.notes


@pytest.mark.parametrize("make", [lambda path, other: path.symlink_to(other), lambda path, other: path.write_text("")])
def test_a_submission_that_is_no_folder_is_graded_as_empty(make: Callable[[Path, Path], object], folder: Path) -> None:
    (folder / FILE).write_text(WORK)
    make(folder.parent / "other", folder)
    intake = receive(folder.parent / "other", RELEASE)
    assert taken(intake) == "" and "it is not a folder" in intake.notes[0]


def test_a_notebook_in_a_folder_of_its_name_is_found(folder: Path) -> None:
    (folder / FILE).mkdir()
    (folder / FILE / FILE).write_text(WORK)
    intake = receive(folder, RELEASE)
    assert taken(intake) == "x = 'mine'" and "is a folder, not a notebook" in intake.notes[0]


def test_an_empty_folder_is_graded(folder: Path) -> None:
    intake = receive(folder, RELEASE)
    assert taken(intake) == ""
    assert intake.notes == ("The submission is empty.", f"There is no `{FILE}`.")


@pytest.mark.parametrize(
    "name",
    [f"{NAME}-Copy1.ipynb", f"{NAME.upper()}.ipynb", f"Copy of {NAME} (1).ipynb", "homework.ipynb", f"sub/{FILE}"],
)
def test_the_only_notebook_is_taken_under_another_name(name: str, folder: Path) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(WORK)
    intake = receive(folder, RELEASE)
    assert taken(intake) == "x = 'mine'"
    assert intake.notes == (f"There is no `{FILE}`; `{name}` was read in its place.",)


def test_of_two_copies_none_is_taken_and_the_right_name_counts(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / f"{NAME}-{name}.ipynb").write_text(WORK)
    intake = receive(folder, RELEASE)
    assert taken(intake) == "" and "more than one file that it can be" in intake.notes[0]
    (folder / FILE).write_text(WORK.replace("'mine'", "'right'"))
    intake = receive(folder, RELEASE)
    assert taken(intake) == "x = 'right'"
    assert intake.notes == (f"Only the course's notebooks are graded; left out: `{NAME}-a.ipynb`, `{NAME}-b.ipynb`.",)


def test_of_several_notebooks_a_missing_one_is_empty(folder: Path) -> None:
    release = Release({NAME: RELEASED, "second": RELEASED})
    (folder / FILE).write_text(WORK)
    intake = receive(folder, release)
    assert taken(intake, release) == "x = 'mine'"
    assert intake.notebooks["second"].cells[2].source.split("\n", 1)[1] == ""
    assert "There is no `second.ipynb`." in intake.notes


def test_a_copy_is_of_the_notebook_whose_whole_name_it_has(folder: Path) -> None:
    release = Release({"pass": RELEASED, NAME: RELEASED})
    (folder / f"{NAME}-Copy1.ipynb").write_text(WORK)
    intake = receive(folder, release)
    assert taken(intake, release) == "x = 'mine'" and "There is no `pass.ipynb`." in intake.notes


def test_the_exercise_s_number_may_be_missing_or_another(folder: Path) -> None:
    release = Release({NAME: RELEASED, "102_pass_it_far": RELEASED})
    for name in ("pass_it_on", "99_pass_it_far"):
        (folder / f"{name}.ipynb").write_text(WORK)
    intake = receive(folder, release)
    assert taken(intake, release) == "x = 'mine'"
    assert intake.notes == (
        f"There is no `{FILE}`; `pass_it_on.ipynb` was read in its place.",
        "There is no `102_pass_it_far.ipynb`; `99_pass_it_far.ipynb` was read in its place.",
    )


def test_files_that_would_shadow_modules_are_left_out_and_noted(folder: Path) -> None:
    (folder / FILE).write_text(WORK)
    for name in ("torch.py", "conftest.py", "sitecustomize.py", "labkit/__init__.py", "n\nam\x1b[2Je\u202e.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("raise SystemExit")
    (folder / "-rf *.ipynb").write_text(WORK)
    intake = receive(folder, RELEASE)
    (note,) = intake.notes
    assert taken(intake) == "x = 'mine'"
    for name in ("torch.py", "conftest.py", "sitecustomize.py", "labkit/__init__.py"):
        assert f"`{name}`" in note
    assert note.endswith(", 2 with other names.")


def test_limits_leave_out_the_rest_and_grade_the_work(folder: Path) -> None:
    (folder / FILE).write_text(WORK)
    for number in range(40):
        (folder / f"{number}").write_text("")
    deep = folder / "a" / "b" / "c" / "d"
    deep.mkdir(parents=True)
    (deep / "e").write_text("")
    intake = receive(folder, RELEASE, Limits(files=30, depth=3))
    assert taken(intake) == "x = 'mine'"
    assert any("Only 30 files" in note for note in intake.notes)
    assert any("more than 3 deep" in note for note in receive(folder, RELEASE, Limits(depth=3)).notes)
    with_small_hash = receive(folder, RELEASE, Limits(total_bytes=10))
    assert taken(with_small_hash) == "x = 'mine'"


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more")


def replace(path: Path) -> None:
    path.with_name("other").write_bytes(path.read_bytes())
    path.with_name("other").replace(path)


def touch(path: Path) -> None:
    os.utime(path, (1e9, 1e9))  # the clock of an older kernel's files may still show the time of the last change


CHANGES = {"grow": grow, "shrink": lambda path: os.truncate(path, 5), "touch": touch}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_file_that_changes_while_it_is_read_is_not_taken(change: Callable[[Path], None], tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * (3 << 20))
    with opened(tmp_path) as folder:
        (one,), _ = walk(folder, Limits())
        reading = chunks(folder, one, 10 << 20)
        next(reading)
        change(path)
        with pytest.raises(FilesChanged, match="changed while it was read"):
            list(reading)


@pytest.mark.parametrize("change", [*CHANGES.values(), replace, Path.unlink], ids=[*CHANGES, "replace", "remove"])
def test_a_file_that_changed_since_it_was_found_is_not_taken(change: Callable[[Path], None], tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)
    with opened(tmp_path) as folder:
        (one,), _ = walk(folder, Limits())
        change(tmp_path / "file")
        with pytest.raises(FilesChanged):
            list(chunks(folder, one, 10 << 20))


def test_a_part_of_a_path_that_becomes_a_link_leads_nowhere(tmp_path: Path) -> None:
    for name in ("inside/sub", "secret"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "file").write_text(name)
    with opened(tmp_path / "inside") as folder:
        (one,), _ = walk(folder, Limits())
        (tmp_path / "inside" / "sub").rename(tmp_path / "elsewhere")
        (tmp_path / "inside" / "sub").symlink_to(tmp_path / "secret")
        with pytest.raises(EntryRefused):
            list(chunks(folder, one, 100))


@pytest.fixture
def unprivileged() -> Iterator[Path]:
    """A folder of a user who is not root, with that user's permissions."""
    with tempfile.TemporaryDirectory() as made:
        as_root = os.geteuid() == 0
        if as_root:
            uid = next(user.pw_uid for user in pwd.getpwall() if user.pw_uid)
            os.chown(made, uid, -1)
            os.seteuid(uid)
        try:
            yield Path(made)
        finally:
            if as_root:
                os.seteuid(0)


def test_an_unreadable_file_is_its_authors_and_an_unreadable_folder_of_ours_is_not(unprivileged: Path) -> None:
    (unprivileged / FILE).write_text(WORK)
    (unprivileged / FILE).chmod(0)
    (unprivileged / "closed").mkdir(mode=0)
    intake = receive(unprivileged, RELEASE)
    assert taken(intake) == ""
    assert any("its permissions do not let anybody read it" in note for note in intake.notes)
    (unprivileged / "closed").chmod(0o700)
    (unprivileged / "course").mkdir(mode=0o600)  # our own folder, which we may not enter
    with pytest.raises(IntakeFailed):
        receive(unprivileged / "course" / "submission", RELEASE)


def test_what_is_missing_on_our_side_is_no_grade(tmp_path: Path) -> None:
    with pytest.raises(IntakeFailed, match="No such file"):
        receive(tmp_path / "nobody", RELEASE)
    for folder in (tmp_path / "no_release", tmp_path):
        with pytest.raises(IntakeFailed, match="nbgrader generate_assignment"):
            read_release(folder)
    (tmp_path / "broken.ipynb").write_text("{")
    with pytest.raises(IntakeFailed, match="cannot be read"):
        read_release(tmp_path)


@pytest.mark.parametrize(
    "text",
    ["", "soon", "9999-99-99 00:00:00", "2026-01-01 00:00:00 /dev/zero", "\x00" * 50, "2026-01-01 00:00:00 UTC x"],
)
def test_without_a_valid_time_the_time_of_receipt_counts(text: str, folder: Path) -> None:
    stamp = folder / "timestamp.txt"
    stamp.write_text(text)
    received = datetime.fromtimestamp(stamp.stat().st_ctime, UTC).replace(tzinfo=None)
    intake = receive(folder, RELEASE)
    assert (intake.handed_in, intake.notes[0]) == (received, intake.time_problem)
    assert "`timestamp.txt` has no valid time" in intake.time_problem
    stamp.unlink()
    assert (receive(folder, RELEASE).handed_in, receive(folder, RELEASE).time_problem) == (None, "")


@pytest.mark.parametrize(
    "data",
    [
        "\ufeff2026-03-01 12:00:00.5 UTC\r\n".encode(),
        "\ufeff2026-03-01 12:00:00.5 UTC\r\n".encode("utf-16-le"),
        "2026-03-01 12:00:00.5 UTC".encode("utf-16-be"),
        b"2026-03-01 13:00:00.5 +01:00\r",
        b"2026-03-01 13:00:00.5 +0100\n",
    ],
)
def test_a_time_stamp_that_windows_wrote_is_read(data: bytes, folder: Path) -> None:
    (folder / "timestamp.txt").write_bytes(data)
    intake = receive(folder, RELEASE)
    assert (intake.handed_in, intake.time_problem) == (datetime(2026, 3, 1, 12, 0, 0, 500_000), "")


@pytest.mark.parametrize("text", ["2026-03-01 12:00:00 CEST", "2026-03-01 12:00:00 PST"])
def test_an_abbreviation_of_a_zone_that_is_unknown_is_not_utc(text: str, folder: Path) -> None:
    (folder / "timestamp.txt").write_text(text)
    assert receive(folder, RELEASE).time_problem


@settings(max_examples=200)
@given(
    st.text()
    | st.from_regex(r"[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}(\.[0-9]{1,6})? ([A-Z]{2,5}|[+-][0-9]{4})", fullmatch=True)
)
def test_any_text_is_a_time_or_none(text: str) -> None:
    time = told_time(text)
    assert time is None or told_time(time.strftime(FORMAT)) == time


def test_the_record_of_collect_counts_more_than_the_submissions_own_word(folder: Path) -> None:
    (folder / FILE).write_text(WORK)
    (folder / "timestamp.txt").write_text("2001-01-01 00:00:00 UTC")
    time = datetime(2026, 11, 21, 10, 0, 0, 1)
    record = Record("ann", "phase1", time, time, time, "ann", True, "0", "ann+phase1+x", ("`x` was left out.",))
    written = json.loads(json.dumps(record.to_json()))
    assert Record.from_json(written) == record
    del written["received"]  # as earlier versions wrote it
    assert Record.from_json(written) == record
    intake = receive(folder, RELEASE, record=record)
    assert (intake.handed_in, intake.recorded) == (time, True) and time.strftime(FORMAT)[:4] == "2026"
    assert intake.notes == record.notes
