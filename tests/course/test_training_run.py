"""A training as a program: its log where there is no space, its bar on a terminal, whose folders are whose."""

from __future__ import annotations

import json
import os
import pty
import resource
import signal
import sys
from pathlib import Path

import pytest
import torch.distributed as dist

from labkit.course.training_run.console import Console, duration
from labkit.course.training_run.folders import Folders, stored_configuration
from labkit.course.training_run.json_line_file import JsonLineFile
from labkit.course.training_run.options import RunRefused
from labkit.course.training_run.run import TrainingRun


def test_a_log_goes_on_when_there_is_space_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "rank-00000.jsonl"
    log, before = JsonLineFile(path), resource.getrlimit(resource.RLIMIT_FSIZE)
    log.write({"step": 1, "text": 100_000 * "x"})  # longer than all else that this process writes meanwhile
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 4, before[1]))
    try:
        log.write({"step": 2})
        log.write({"step": 3})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    log.write({"step": 4})
    log.close()
    first, torn, last = path.read_text().splitlines()
    assert json.loads(first)["step"] == 1 and torn == '{"st' and json.loads(last) == {"step": 4}
    shown = capfd.readouterr().err
    assert shown.count(str(path)) == 1 and "training goes on" in shown


def test_a_terminal_has_a_bar_and_the_log_has_the_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        console = Console(True, str(tmp_path / "log.jsonl"))
        console.progress("epoch 1/2", 3, 10)
        console.line("epoch", "epoch 1/2  loss nan", loss=float("nan"))
        console.progress("epoch 2/2", 7, 10)
        console.close()
        monkeypatch.undo()
        shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    for text in ("epoch 1/2", "epoch 1/2  loss nan", "epoch 2/2", "7/10"):  # the bar is drawn ten times a second
        assert text in shown
    (entry,) = map(json.loads, (tmp_path / "log.jsonl").read_text().splitlines())
    assert (entry["event"], entry["text"], entry["loss"]) == ("epoch", "epoch 1/2  loss nan", "nan")


@pytest.mark.parametrize("restarts", [0, 2])
def test_ranks_that_may_be_started_again_end_at_once_on_sigterm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, restarts: int
) -> None:
    """Their agent sends it when another rank is lost, for which they may wait within a step."""
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", str(restarts))
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        run = TrainingRun(saves=True)
        before = signal.getsignal(signal.SIGTERM)
        with run.running():
            assert run.heeds_signals == (restarts == 0)
            assert (signal.getsignal(signal.SIGTERM) == before) == (restarts > 0)
    finally:
        dist.destroy_process_group()


def test_times_are_short() -> None:
    assert [duration(seconds) for seconds in (4.6, 750, 10810, float("inf"))] == ["0:05", "12:30", "3:00:10", "unknown"]


def test_a_mesh_is_overwritten_in_all_of_its_places(tmp_path: Path) -> None:
    """Other files in the folder stay."""
    for place in ("pp0_tp0", "pp1_tp0"):
        (tmp_path / place / "step_00000003").mkdir(parents=True)
    (tmp_path / "notes.txt").write_text("mine")
    folders = Folders(str(tmp_path))
    with pytest.raises(RunRefused, match="has 2 checkpoints of an earlier run"):
        folders.begin("llm_13b", {"steps": 4}, (), resume=False, overwrite=False)
    assert len(folders.checkpoints()) == 2 and stored_configuration(str(tmp_path)) is None
    assert folders.begin("llm_13b", {"steps": 4}, (), resume=False, overwrite=True).deleted == 2
    assert folders.checkpoints() == [] and (tmp_path / "notes.txt").exists()


def test_a_folder_of_another_program_is_refused(tmp_path: Path) -> None:
    Folders(str(tmp_path)).begin("llm_13b", {"steps": 4}, (), resume=False, overwrite=False)
    (tmp_path / "step_00000003").mkdir()
    with pytest.raises(RunRefused, match="has a training of llm_13b, not of image_classification"):
        Folders(str(tmp_path)).begin("image_classification", {"epochs": 4}, (), resume=True, overwrite=False)
    with pytest.raises(RunRefused, match="with --steps 4, which cannot go on with --steps 5"):
        Folders(str(tmp_path)).begin("llm_13b", {"steps": 5}, ["steps"], resume=True, overwrite=False)


def test_folders_may_be_in_an_object_store(tmp_path: Path) -> None:
    address = f"memory://{tmp_path.name}"
    Folders(address).begin("llm_13b", {"steps": 4}, (), resume=False, overwrite=False)
    stored = stored_configuration(address)
    assert stored is not None and stored["options"] == {"steps": 4}
