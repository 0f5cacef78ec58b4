"""Progress of a job, from the output of its ranks."""

import pytest

from labkit.clusters import State
from labkit.notebook.output.display import RunDisplay
from labkit.notebook.output.progress import in_words, share_of


@pytest.mark.parametrize(
    ("text", "share"),
    [
        (" 45%|████▌     | 45/100 [00:01<00:02, 19.8it/s]", 0.45),
        ("epoch 3/4 loss 0.1", 0.75),
        ("step 10 of 20", 0.5),
        ("\x1b[32m 99.5 %\x1b[0m", 0.995),
        ("12it [00:01, 9.3it/s]", None),
        ("2026/11/21 12:00", None),
        ("loss 150%", None),
    ],
)
def test_bars_tell_how_far_they_are(text, share):
    assert share_of(text) == (None if share is None else pytest.approx(share))


def display(tmp_path, world_size: int, nnodes: int = 1) -> RunDisplay:
    return RunDisplay(world_size, nnodes, in_order=False, limit=60.0, logs_folder=tmp_path)


def test_the_jobs_bar_is_the_least_of_the_ranks(tmp_path):
    run = display(tmp_path, 4)
    for rank in range(4):
        run.on_output(rank, "stderr", f"\rtrain: 0%|\rtrain: {20 + 10 * rank}%|")
    shown = run.now(12.3)
    assert shown is not None and shown.share == pytest.approx(0.2)
    assert [label for label, _, _ in shown.bars] == ["[0]", "[1]", "[2]", "[3]"]
    assert shown.state == "4 ranks running, 12 s of at most 1 min"
    # a finished bar counts as done, and is now a line
    run.on_output(0, "stderr", "\rtrain: 100%|\n")
    shown = run.now(13.0)
    assert shown is not None and shown.share == pytest.approx(0.3)
    assert ("[0]", "train: 100%|", 0) in shown.lines


def test_of_many_bars_the_slowest_and_the_fastest_are_shown(tmp_path):
    run = display(tmp_path, 64, nnodes=8)
    for rank in range(64):
        run.on_output(rank, "stdout", f"\r0%\r{rank}%")
    shown = run.now(1.0)
    assert shown is not None
    assert shown.bars == [("[0:0]", "0%", 0), ("", "62 more between these two", -1), ("[7:63]", "63%", 63)]


def test_the_phase_is_told_in_words():
    assert in_words(State("queued", "job 17 waits"), 8, 3.4, None) == "8 ranks queued, 3 s"
    assert in_words(State("hanging", ended=1), 4, 100.0, None) == "4 ranks hang, 1 ended, 1 min 40 s"
    assert in_words(State("restarting"), None, 4000.0, 7200.0) == "ranks start again, 1 h 6 min of at most 2 h"


def test_a_run_that_is_quiet_and_short_shows_nothing(tmp_path):
    run = display(tmp_path, 2)
    assert run.now(0.2) is None
    shown = run.now(1.5)
    assert shown is not None and shown.state.startswith("2 ranks starting") and shown.share is None


def test_ranks_that_have_ended_move_the_jobs_bar_where_no_rank_has_one(tmp_path):
    run = display(tmp_path, 4)
    run.on_state(State("running"))
    shown = run.now(5.0)
    assert shown is not None and (shown.state, shown.share) == ("4 ranks running, 5 s of at most 1 min", None)
    run.on_state(State("running", ended=1))
    shown = run.now(6.0)
    assert shown is not None and (shown.state, shown.share) == ("4 ranks running, 1 ended, 6 s of at most 1 min", 0.25)


def test_the_logs_are_named_before_anything_is_printed_and_gone_if_nothing_was(tmp_path):
    run = display(tmp_path / "logs", 2)
    shown = run.now(1.5)
    assert shown is not None and shown.logs == str(tmp_path / "logs" / "0001")
    run.logs.close()
    assert run.logs.folder is None and not (tmp_path / "logs" / "0001").exists()
    assert run.logs.reserve() is None
