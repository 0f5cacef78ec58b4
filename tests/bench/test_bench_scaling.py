"""`labkit bench scaling`, on virtual ranks and processes: what it writes, and how it goes on after it was stopped."""

from __future__ import annotations

import csv
import io
import json
import re
import signal
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from labkit.bench import command
from labkit.cli import main
from labkit.course.phase4_production.scaling_study.given.files import append
from labkit.course.phase4_production.scaling_study.given.records import Measurement
from labkit.hardware import topology
from labkit.predict import Plan, model, predict

MODEL = "mlp-16x8x4"
SMALL = ["--model", MODEL, "--batch-sizes", "4", "--steps", "1", "--warmup", "1", "--repeats", "2"]
PROGRESS = re.compile(r"^\d+/\d+ .*", re.MULTILINE)


def bench(file: Path, *options: str) -> tuple[int, str]:
    """Return exit status and output."""
    output = io.StringIO()
    with redirect_stdout(output):
        status = main(["bench", "scaling", *SMALL, "--to", str(file), *options])
    return status, output.getvalue()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A benchmark on real and virtual ranks: its file, its reports, and what it printed."""
    folder = tmp_path_factory.mktemp("bench")
    reports = [word for kind in ("md", "html", "json", "csv") for word in ("--report", f"{folder}/report.{kind}")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABKIT_WORKSPACE", str(folder / "workspace"))
        # twice the same: measured once
        asked = ["--real", "cpu", "--gpus", "2", "1", "2", "--strategies", "ddp", "ddp"]
        status, output = bench(folder / "scaling.jsonl", *asked, *reports)
    assert status == 0, output
    (folder / "output.txt").write_text(output)
    yield folder


def test_progress_names_what_is_measured_and_the_file_has_it(folder: Path) -> None:
    origins = ("real", "virtual", "predict")
    assert PROGRESS.findall((folder / "output.txt").read_text()) == [
        f"{3 * number + place}/6 {origin}: ddp, {gpus}, batch 4"
        for number, gpus in enumerate(("1 GPU", "2 GPUs"))
        for place, origin in enumerate(origins, 1)
    ]
    found = lines(folder / "scaling.jsonl")
    assert [(one["origin"], one["world_size"]) for one in found] == [(of, n) for n in (1, 2) for of in origins]
    for one in found:
        assert (one["kind"], one["strategy"], one["batch_size"], one["model"]) == (
            "measurement",
            "ddp",
            4,
            f"{MODEL}, fp32",
        )
        assert one["cluster"] == ("this machine, CPU" if one["origin"] == "real" else "dgx-a100")
        assert len(one["step_seconds"]) == len(one["compute_seconds"]) == (1 if one["origin"] == "predict" else 2)
        assert one["memory_bytes"] > 0
    seconds = {(one["origin"], one["world_size"]): median(one["step_seconds"]) for one in found}
    assert seconds["virtual", 2] > seconds["virtual", 1]  # messages
    plan = Plan(batch=8, data=2, microbatch=4, precision="fp32", attention="flash2", fusion="none", loss="eager")
    alone = predict(model(MODEL), plan, topology("dgx-a100", nnodes=1, nproc_per_node=2))
    assert seconds["predict", 2] == pytest.approx(alone.step_seconds, rel=1e-9)


def test_all_reports_have_the_figures_of_the_file(folder: Path) -> None:
    found = {(one["origin"], one["world_size"]): median(one["step_seconds"]) for one in lines(folder / "scaling.jsonl")}
    of_csv = list(csv.DictReader(io.StringIO((folder / "report.csv").read_text())))
    of_json = json.loads((folder / "report.json").read_text())["points"]
    assert len(of_csv) == len(of_json) == 6
    for row in (*of_csv, *of_json):
        origin, gpus = row["origin"], int(row["gpus"])
        assert float(row["samples_per_second"]) == pytest.approx(4 * gpus / found[origin, gpus])
        assert float(row["efficiency"]) == pytest.approx(found[origin, 1] / found[origin, gpus])
    markdown, page = ((folder / f"report.{kind}").read_text() for kind in ("md", "html"))
    assert markdown in (folder / "output.txt").read_text()
    for (origin, gpus), seconds in found.items():
        assert f"| {origin} | ddp | {gpus} | 4 | {1e3 * seconds:,.4g} |" in markdown
        assert f"<tr class='{origin}'><td>{origin}</td><td>ddp</td><td>{gpus}</td>" in page
    assert page.count("<img") == 2  # one for each cluster: this machine, dgx-a100
    # no other file is needed
    assert not re.findall(r"<script|<link|@import|(?:src|href)=[\"'](?!data:)|url\((?!data:)", page)


def test_overheads_with_compression_and_hierarchy_and_bandwidths_have_columns(tmp_path: Path) -> None:
    """Two nodes of 8 virtual GPUs: the row of plain DDP has the overheads of its variants."""
    file, strategies = tmp_path / "scaling.jsonl", ["ddp", "ddp+compression", "ddp+hierarchy"]
    reports = [word for kind in ("json", "csv") for word in ("--report", f"{tmp_path}/report.{kind}")]
    asked = ["--real", "none", "--gpus", "1", "16", "--strategies", *strategies, "--model", "mlp-512x512x512x10"]
    status, output = bench(file, *asked, *reports)
    assert status == 0, output
    found = {(one["origin"], one["strategy"], one["world_size"]): one for one in lines(file)}
    # nothing to compress or to divide on one GPU; formulas know neither
    assert sorted(found) == sorted(
        [(origin, "ddp", gpus) for origin in ("virtual", "predict") for gpus in (1, 16)]
        + [("virtual", strategy, 16) for strategy in strategies[1:]]
    )
    shares = {
        strategy: 1 - median(one["compute_seconds"]) / median(one["step_seconds"])
        for (origin, strategy, gpus), one in found.items()
        if (origin, gpus) == ("virtual", 16)
    }
    assert len(set(shares.values())) == 3 and all(0 < share < 1 for share in shares.values())
    points = {
        (row["origin"], row["strategy"], row["gpus"]): row
        for row in json.loads((tmp_path / "report.json").read_text())["points"]
    }
    row = points["virtual", "ddp", 16]
    assert row["overhead"] == pytest.approx(shares["ddp"]) and row["utilization"] == pytest.approx(1 - shares["ddp"])
    assert row["overhead_with_compression"] == pytest.approx(shares["ddp+compression"])
    assert row["overhead_with_hierarchy"] == pytest.approx(shares["ddp+hierarchy"])
    # 8 cards of 25 GB/s leave a node; NVLink has 300
    names = [f"{name}_gb_per_s" for name in ("all_reduce", "all_gather", "reduce_scatter")]
    assert all(10 < row[name] < 300 for name in names), row
    assert {points["virtual", "ddp", 1][name] for name in (*names, "overhead_with_hierarchy")} == {None}
    assert {points["predict", "ddp", 16][name] for name in names} == {None}
    of_csv = {
        (one["origin"], one["strategy"], one["gpus"]): one for one in csv.DictReader((tmp_path / "report.csv").open())
    }
    assert of_csv["virtual", "ddp", "1"]["all_reduce_gb_per_s"] == ""
    assert float(of_csv["virtual", "ddp", "16"]["all_reduce_gb_per_s"]) == row["all_reduce_gb_per_s"]
    titles, *table = [line.strip("| ").split(" | ") for line in output.splitlines() if line.startswith("| ")]
    (cells,) = [line for line in table if line[:3] == ["virtual", "ddp", "16"]]
    shown = dict(zip(titles, cells, strict=True))
    for title, name in (
        ("overhead", "ddp"),
        ("with compression", "ddp+compression"),
        ("with hierarchy", "ddp+hierarchy"),
    ):
        assert shown[title] == f"{shares[name]:.1%}"
    assert shown["all-reduce, GB/s"] == f"{row['all_reduce_gb_per_s']:,.3g}"


def test_compression_is_measured_on_processes_and_a_hierarchy_needs_nodes(tmp_path: Path, capsys: Any) -> None:
    file = tmp_path / "scaling.jsonl"
    status, output = bench(file, "--real", "cpu", "--gpus", "2", "--strategies", "ddp+compression")
    assert status == 0, output
    assert [one["origin"] for one in lines(file)] == ["real", "virtual"]
    assert all(one["gb_per_s"].keys() == {"all_reduce", "all_gather", "reduce_scatter"} for one in lines(file))
    assert main(["bench", "scaling", *SMALL, "--gpus", "2", "--strategies", "ddp+hierarchy", "--to", str(file)]) == 2
    assert "a hierarchy for several nodes" in capsys.readouterr().err


def test_only_what_the_file_lacks_is_measured(folder: Path, tmp_path: Path) -> None:
    """The last line is missing, and the one before was cut off as it was written."""
    whole = (folder / "scaling.jsonl").read_bytes()
    kept = whole.splitlines(keepends=True)
    file = tmp_path / "scaling.jsonl"
    file.write_bytes(b"".join(kept[:4]) + kept[4][:50])
    asked = ["--real", "cpu", "--gpus", "1", "2"]
    status, output = bench(file, *asked)
    assert status == 0 and f"4 of 6 are in {file} already" in output.replace("\n", "")
    assert PROGRESS.findall(output) == ["1/2 virtual: ddp, 2 GPUs, batch 4", "2/2 predict: ddp, 2 GPUs, batch 4"]
    now = file.read_bytes().splitlines(keepends=True)
    assert now[:4] == kept[:4] and now[4] == kept[4][:50] + b"\n" and now[6] == kept[5]
    assert json.loads(now[5])["origin"] == "virtual" and len(now) == 7
    status, output = bench(file, *asked)
    assert status == 0 and PROGRESS.findall(output) == [] and file.read_bytes() == b"".join(now)
    assert output.count("| ddp |") == 6


def test_another_cluster_is_measured_anew_and_reported_alone(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "scaling.jsonl"
    file.write_bytes((folder / "scaling.jsonl").read_bytes())
    status, output = bench(file, "--real", "none", "--gpus", "1", "--cluster", "h100")
    assert status == 0 and len(PROGRESS.findall(output)) == 2
    assert [one["cluster"] for one in lines(file)[6:]] == ["dgx-h100", "dgx-h100"]
    assert output.count("| ddp |") == 2 and "dgx-a100" not in output


def test_more_repeats_and_another_file_of_the_same_gpu_are_measured_anew(tmp_path: Path) -> None:
    file = tmp_path / "scaling.jsonl"
    for rate in (20.0, 40.0):
        settings = {"format": "labkit cluster 1", "preset": "dgx-a100", "cluster": {"gpu": {"fp32_tflops": rate}}}
        (tmp_path / f"{rate:.0f}.json").write_text(json.dumps(settings))
    slow, quick = (["--real", "none", "--gpus", "1", "--cluster", str(tmp_path / f"{rate}.json")] for rate in (20, 40))
    for asked, more in ((slow, 2), (slow, 0), ([*slow, "--repeats", "3"], 1), (slow, 0), (quick, 2)):
        status, output = bench(file, *asked)
        assert status == 0 and len(PROGRESS.findall(output)) == more


def test_interrupted_it_keeps_what_it_has_and_goes_on_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scaling.jsonl"

    def append_and_interrupt(path: Path, measurement: Measurement) -> None:
        append(path, measurement)
        if len(lines(path)) == 2:
            signal.raise_signal(signal.SIGINT)

    asked = ["--real", "none", "--gpus", "1", "2", "4"]
    with monkeypatch.context() as patch:
        patch.setattr(command, "append", append_and_interrupt)
        status, output = bench(file, *asked)
    had = lines(file)
    assert status == 130 and len(had) == 2, output
    status, output = bench(file, *asked)
    assert status == 0 and len(PROGRESS.findall(output)) == 6 - len(had)
    found = lines(file)
    assert found[: len(had)] == had
    assert sorted((one["world_size"], one["origin"]) for one in found) == [
        (gpus, origin) for gpus in (1, 2, 4) for origin in ("predict", "virtual")
    ]


def test_strong_scaling_shares_the_batch_and_an_epoch_has_its_price(tmp_path: Path) -> None:
    file = tmp_path / "scaling.jsonl"
    asked = ["--real", "none", "--strong", "--gpus", "1", "2", "3", "--strategies", "fsdp"]
    status, output = bench(file, *asked, "--samples", "1000001", "--price", "3600", "--report", f"{tmp_path}/all.json")
    assert status == 0, output
    found = {(one["origin"], one["world_size"], one["batch_size"]): one for one in lines(file)}
    assert set(found) == {(of, *sizes) for of in ("virtual", "predict") for sizes in ((1, 4), (2, 2))}  # 3: not equally
    for row in json.loads((tmp_path / "all.json").read_text())["points"]:
        seconds = {gpus: median(found[row["origin"], gpus, 4 // gpus]["step_seconds"]) for gpus in (1, 2)}
        assert row["scaling"] == "strong"
        assert row["efficiency"] == pytest.approx(seconds[1] / seconds[row["gpus"]] / row["gpus"])
        of = f"{row['gpus']} GPU{'s' * (row['gpus'] > 1)}, fsdp, {row['origin']}"
        dollars = 250_001 * seconds[row["gpus"]] * row["gpus"]
        assert re.search(rf"1,000,001 samples on {of}: 250,001 steps, .*, {dollars:,.2f} dollars", output)


def test_what_does_not_fit_is_named_and_the_rest_is_measured(tmp_path: Path) -> None:
    file = tmp_path / "scaling.jsonl"
    asked = ["--real", "none", "--gpus", "1", "--cluster", "t4", "--model", "mlp-60000x60000x10"]
    for measured in (["1/2 virtual", "2/2 predict"], ["1/1 virtual"]):  # a failure is tried again
        status, output = bench(file, *asked)
        assert status == 1
        assert [line.partition(":")[0] for line in PROGRESS.findall(output)] == measured
        assert re.search(r"^failed: virtual: ddp, 1 GPU, batch 4: OutOfMemoryError: .+", output, re.MULTILINE)
        assert [one["origin"] for one in lines(file)] == ["predict"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--gpus 0", "--gpus must be at least 1, got 0"),
        ("--gpus 12", "12 GPUs do not fill nodes of 8"),
        ("--batch-sizes 4 -1", "--batch-sizes must be at least 1, got -1"),
        ("--strong --batch-sizes 1 --gpus 2", "--strong needs batch sizes that all GPUs can share equally"),
        ("--steps 0", "--steps must be at least 1, got 0"),
        ("--warmup -1", "--warmup must be at least 0, got -1"),
        ("--repeats 0", "--repeats must be at least 1, got 0"),
        ("--samples 0", "--samples must be at least 1, got 0"),
        ("--samples 9 --price -1", "--price must be a number of dollars, got -1.0"),
        ("--price 2", "--price needs --samples"),
        ("--cluster b3", "unknown kind 'b3'; there are: a100"),
        ("--model nosuch", "unknown model 'nosuch'; there are: gpt2-small"),
        ("--model llama2-7b", "model 'llama2-7b' cannot be trained here: choose resnet50, a ViT, a GPT, an MLP"),
        ("--model resnet101", "or a network's stand-in such as resnet101-products"),
        ("--model gpt2-small-products", "only convolutional networks, such as resnet50, have a stand-in of products"),
        ("--model vit-b16 --sequence 5", "vit-b16 has no sequence length to change"),
        ("--real cpu --precision tf32", "--precision tf32 is of tensor cores: processes on a CPU compute in fp32"),
        ("--sequence 5", "has no sequence length to change"),
        ("--report a.txt", "--report a.txt: its name must end in .md, .html, .json, .csv"),
        ("--report nowhere/a.md", "there is no folder nowhere for a.md"),
        ("--to nowhere/a.jsonl", "there is no folder nowhere for a.jsonl"),
        ("--to .", "Is a directory"),
    ],
)
def test_a_wrong_option_gets_one_line_before_anything_is_measured(
    options: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["--real", "none", "--gpus", "1", "--to", "scaling.jsonl"]
    assert main(["bench", "scaling", *SMALL, *asked, *options.split()]) == 2
    written = capsys.readouterr()
    # a file is opened when it is known whose modules are measured, which a note says
    (line,) = [line for line in written.err.splitlines() if not line.startswith("note: ")]
    assert line.startswith("labkit: ") and message in line
    assert not PROGRESS.search(written.out) and list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("import torch\n", '{"kind": "run", "rank": 0}\n', '{"kind": "measurement", "origin": "guess"}\n'):
        file = tmp_path / "mine"
        file.write_text(text)
        assert main(["bench", "scaling", *SMALL, "--real", "none", "--gpus", "1", "--to", str(file)]) == 2
        assert f"{file}, line 1: not a " in capsys.readouterr().err
        assert file.read_text() == text


RESNET = ["--model", "resnet50", "--gpus", "1", "--repeats", "1", "--warmup", "0"]


def test_virtual_ranks_train_the_resnet50_that_is_predicted(tmp_path: Path) -> None:
    file = tmp_path / "scaling.jsonl"
    status, output = bench(file, *RESNET, "--real", "none", "--batch-sizes", "32")
    assert status == 0, output
    virtual, predicted = lines(file)
    assert (virtual["model"], virtual["origin"], predicted["origin"]) == ("resnet50, fp32", "virtual", "predict")
    # six matrix products of as many FLOPs keep half as much for backward
    assert virtual["memory_bytes"] == pytest.approx(predicted["memory_bytes"], rel=0.1)
    assert median(virtual["step_seconds"]) == pytest.approx(median(predicted["step_seconds"]), rel=0.3)


def test_real_ranks_train_resnet50(tmp_path: Path) -> None:
    file = tmp_path / "scaling.jsonl"
    status, output = bench(file, *RESNET, "--real", "cpu", "--batch-sizes", "1")
    assert status == 0, output
    assert [(one["origin"], one["model"]) for one in lines(file)] == [
        (origin, "resnet50, fp32") for origin in ("real", "virtual", "predict")
    ]


def test_one_precision_is_that_of_all_columns(tmp_path: Path) -> None:
    file = tmp_path / "scaling.jsonl"
    asked = ["--real", "none", "--gpus", "1", "--model", "mlp-4096x4096x10", "--batch-sizes", "4096"]
    for precision in ("fp32", "tf32"):
        assert bench(file, *asked, "--precision", precision)[0] == 0
    found = {(one["origin"], one["model"].rpartition(" ")[2]): median(one["step_seconds"]) for one in lines(file)}
    assert len(found) == 4  # the second precision is measured anew
    for origin in ("virtual", "predict"):
        assert found[origin, "fp32"] > 2 * found[origin, "tf32"], "an A100 has 19.5 and 156 TFLOP/s"
