"""`labkit challenge all_reduce`: what it prints, what counts, and whether recorded scores are those of today."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from labkit.catalogue import root
from labkit.challenges.all_reduce.irregular_cluster import PUBLISHED, IrregularCluster, drawn, lower_bound
from labkit.challenges.all_reduce.race import TEMPLATE, bounds, measure
from labkit.challenges.challenge import BOUND, Outcome, find
from labkit.cli import main

sys.path.insert(0, str(root() / "benchmarks"))

import challenges as recording

SMALL = IrregularCluster("two nodes", 2, 1, (1.0, 0.5))


def outcome(source: str, cluster: IrregularCluster = SMALL) -> Outcome:
    return measure(source, "mine", clusters=[cluster])[0]


def body(*lines: str) -> str:
    return TEMPLATE.replace("    dist.all_reduce(tensor)", "\n".join(f"    {line}" for line in lines) + "\n   ")


@pytest.mark.parametrize(("entry", "number"), [("library", 2), ("weighted_trees", 3)])
def test_recorded_scores_are_those_of_today(entry: str, number: int) -> None:
    source = (root() / "solutions/challenges/all_reduce" / f"{entry}.py").read_text()
    cluster = PUBLISHED[number]
    rows = {row.name: row.values for row in find("all_reduce").standings()}
    found = outcome(source, cluster)
    assert (found.fault, found.value) == ("", pytest.approx(rows[entry][cluster.name], rel=1e-9))
    assert found.trace is not None and found.trace.seconds == found.value


def test_recorded_bounds_and_the_page_are_up_to_date() -> None:
    rows = {row.name: row for row in find("all_reduce").standings()}
    assert rows[BOUND].values == pytest.approx(bounds())
    assert min(rows.values(), key=lambda row: row.score).name == BOUND
    page = recording.PAGE.read_text()
    assert recording.with_standings(page) == page, "run python benchmarks/challenges.py --write"


def test_the_bound_is_that_of_the_slowest_link_or_of_all_together() -> None:
    latency = SMALL.topology.inter_node.latency_seconds
    slow = IrregularCluster("slow", 4, 1, (1.0, 1.0, 0.2, 1.0))
    equal = IrregularCluster("equal", 4, 1)
    assert lower_bound(slow, 25_000_000) == pytest.approx(latency + 1e-3 / 0.2)
    assert lower_bound(equal, 25_000_000) == pytest.approx(latency + 1e-3 * 2 * 3 / 4)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        (["raise ValueError('no link')"], "ValueError on every rank at challenges/mine.py, line"),
        (["dist.recv(tensor, 1 - dist.get_rank())"], "Deadlock"),
        (
            ["half = tensor >> 16", "dist.all_reduce(half)", "tensor.copy_(half << 16)"],
            "elements of the tensor are wrong",
        ),
        (["other = torch.zeros_like(tensor)", "dist.all_reduce(other)"], "rank 0: 10485"),
        (["dist.barrier()"], "elements of the tensor are wrong, the first at 0"),
        (["store = dist.distributed_c10d._get_default_store()", "store.set('a', 'b' * 99)"], "rank"),
    ],
)
def test_an_entry_with_a_fault_does_not_count_and_the_fault_is_named(lines: list[str], fault: str) -> None:
    found = outcome(body(*lines))
    assert fault in found.fault and found.value != found.value


def test_data_that_went_through_a_file_does_not_count(tmp_path: Path) -> None:
    """The values are right, since ranks share this machine's files, but no bytes crossed a link."""
    found = outcome(
        body(
            "import time",
            "rank = dist.get_rank()",
            f"torch.save(tensor, f'{tmp_path}/{{rank}}.part')",
            f"import os; os.rename(f'{tmp_path}/{{rank}}.part', f'{tmp_path}/{{rank}}')",
            "dist.barrier()",
            f"tensor.add_(torch.load(f'{tmp_path}/{{1 - rank}}'))",
        )
    )
    assert found.fault.startswith("rank 0 sent ") and "its own tensor has 4194304" in found.fault


def test_drawn_clusters_differ_from_seed_to_seed_and_repeat() -> None:
    assert drawn(1) == drawn(1) != drawn(2)
    for cluster in (*drawn(1), *drawn(2), *drawn(3)):
        assert min((*cluster.card_factors, *cluster.port_factors)) < 1
        assert 0 < lower_bound(cluster) < 1e-2


def test_from_template_to_score(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mine = tmp_path / "mine.py"
    assert main(["challenge", "all_reduce", "--new", str(mine)]) == 0
    assert main(["challenge", "all_reduce", "--new", str(mine)]) == 2
    assert "exists, and is left as it is" in capsys.readouterr().err
    assert mine.read_text() == TEMPLATE
    assert main(["challenge", "all_reduce", str(mine)]) == 0
    rows = {line.split("  ")[0].strip(): line.split()[-6:] for line in capsys.readouterr().out.splitlines()}
    assert rows["yours: mine.py"] == rows["library"]
    assert sorted(path.name for path in (tmp_path / "mine-traces").iterdir()) == [
        "racks.json", "slow-node.json", "slow-port.json", "unequal-cards.json",
    ]  # fmt: skip


def test_challenges_are_listed_and_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["challenge"]) == 0
    assert "all_reduce  the fastest all-reduce on irregular clusters" in capsys.readouterr().out
    assert main(["challenge", "all_reduce", "--seed", "7"]) == 0
    shown = capsys.readouterr().out
    assert all(cluster.describe() in shown for cluster in drawn(7)) and "weighted_trees" not in shown


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["all_redoce"], "no challenge is called 'all_redoce'; there are: all_reduce, goodput"),
        (["all_reduce", "nowhere.py"], "there is no file nowhere.py"),
        (["--new", "mine.py"], "--new needs the name of a challenge"),
        (["goodput", "--new", "nowhere/mine.py"], "there is no folder nowhere for mine.py"),
    ],
)
def test_a_wrong_request_is_refused_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["challenge", *arguments]) == 2
    assert message in capsys.readouterr().err
