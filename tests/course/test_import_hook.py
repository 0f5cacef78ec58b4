"""`from labkit.exercises import NAME`: the module under work, and on ranks the one that came with the job."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from labkit import exercises


def test_the_module_under_work_can_be_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    template = tmp_path / "templates/phase1_small/double.py"
    template.parent.mkdir(parents=True)
    template.write_text('ORIGIN = "templates"\n')
    (tmp_path / "labkit").mkdir()
    (tmp_path / "labkit/catalogue.toml").write_text(
        '[[exercise]]\nnumber = 1\nname = "phase1_small/double"\ntitle = ""\nbuilds_on = []\nminutes = 5\npoints = 1\n'
    )
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    from labkit.exercises import double  # type: ignore[attr-defined]

    assert double.ORIGIN == "templates"
    with pytest.raises(ImportError, match="duoble"):
        from labkit.exercises import duoble  # type: ignore[attr-defined]  # noqa: F401


def test_each_thread_has_the_modules_of_its_own_job() -> None:
    """Virtual ranks are threads of one process: a rank must not see the module state of another."""
    seen: dict[int, list[int]] = {}

    def rank(number: int) -> None:
        exercises.install({"phase1_small/double": "state = []\n"})
        exercises.double.state.append(number)
        seen[number] = exercises.double.state

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {0: [0], 1: [1], 2: [2]}


def test_a_job_has_only_the_modules_that_came_with_it() -> None:
    def rank() -> None:
        exercises.install({"phase1_small/double": "x = 1\n"})
        try:
            exercises.__getattr__("treble")
        except AttributeError as error:
            said.append(str(error))

    said: list[str] = []
    thread = threading.Thread(target=rank)
    thread.start()
    thread.join()
    assert "exercise 'treble' was not shipped with this job" in said[0]
