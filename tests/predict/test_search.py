"""The best layout: all are tried, and each rejected one has a reason; `labkit predict` at the shell."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from labkit.cli import main
from labkit.hardware import topology
from labkit.predict import model, predict, search


def test_the_quickest_that_fits_is_found_and_the_rest_say_why() -> None:
    cluster = topology("dgx-a100", nnodes=2)
    made = search(model("gpt-6.7b"), 64, cluster)
    assert made.best.surely_fits and made.best.plan.ranks == 16
    assert all(made.best.step_seconds <= other.step_seconds for other in made.found)
    assert made.best.step_seconds == predict(model("gpt-6.7b"), made.best.plan, cluster).step_seconds
    assert made.rejected and all(rejected.why for rejected in made.rejected)
    reasons = {rejected.why.split(":")[0] for rejected in made.rejected}
    assert "out of memory" in reasons
    assert any("GB of 80" in rejected.why for rejected in made.rejected)
    assert all(not rejected.made.surely_fits for rejected in made.rejected if rejected.made)
    assert any(rejected.made.fits and "may need up to" in rejected.why for rejected in made.rejected if rejected.made)


def test_what_is_fixed_is_not_varied() -> None:
    made = search(model("gpt-1.3b"), 32, topology("dgx-a100"), tensor=4, recompute="full", pipeline=1)
    assert {(one.plan.tensor, one.plan.pipeline, one.plan.recompute) for one in made.found} == {(4, 1, "full")}


def test_530b_on_2520_gpus_is_searched_whole() -> None:
    made = search(
        model("gpt-530b"), 2520, topology("dgx-a100", nnodes=315), recompute="full", attention="parts", zero=0
    )
    layouts = {(one.plan.tensor, one.plan.pipeline) for one in made.found}
    assert (8, 35) in layouts, "the layout of SC21, table 1"
    assert made.best.plan.tensor == 8


@pytest.mark.parametrize(("gpus", "published"), [(16_384, 0.41), (8_192, 0.43)])
def test_llama_3_405b_reaches_what_it_did(gpus: int, published: float) -> None:
    """arXiv 2407.21783, table 4: 126 layers in 16 stages, the ends with one fewer, 16.8 million tokens a step."""
    best = search(model("llama3-405b"), 2048, topology("dgx-h100", nnodes=gpus // 8)).best
    print(f"{best!r}, {best.plan}")
    assert best.mfu() < best.mfu("palm")
    assert best.mfu("palm") == pytest.approx(published, rel=0.10), "the paper does not say whether masked pairs count"
    assert (best.plan.tensor, best.plan.pipeline, best.plan.balance) == (8, 16, "ends")


@pytest.mark.parametrize(
    ("layout", "convention", "published"),
    [
        ("--cluster a100x1024 --batch 1536 --data 16 --recompute full", "hfu_megatron", 140 / 312),
        ("--cluster a100x64 --batch 64 --data 1 --recompute selective --chunks 3", "mfu_palm", 0.514),
    ],
)
def test_gpt_3_reaches_what_megatron_did(layout: str, convention: str, published: float, tmp_path: Path) -> None:
    """Narayanan et al. 2021, abstract's 1,024 GPUs; Korthikanti et al. 2022, table 5."""
    target = tmp_path / "prediction.json"
    asked = f"predict --model gpt-175b --tensor 8 --pipeline 8 --microbatch 1 {layout} --json {target}"
    assert main(asked.split()) == 0
    assert json.loads(target.read_text())[convention] == pytest.approx(published, rel=0.10)


def test_each_option_says_what_it_means(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["predict", "--help"])
    told = capsys.readouterr().out
    options = re.split(r"\n  (?=--)", told[told.index("\noptions:") :])[1:]
    assert len(options) > 30
    assert not [option for option in options if len(option.split()) < 5], "an option without a word about it"


def test_networks_without_layers_to_cut_are_searched_too() -> None:
    best = search(model("resnet50"), 2048, topology("dgx-a100"), precision="fp16").best
    assert best.plan.data == 8 and best.plan.tensor == best.plan.pipeline == 1
    assert best.plan.microbatch == 256, "no GPU waits for launches of small microbatches"


def test_a_model_that_never_fits_says_why() -> None:
    told = (
        r"no layout fits: out of memory: stage 0 needs .* GB of 80 \(most: optimizer\) \(\d{3} such layouts\); "
        r"out of memory: stage 0 needs .* GB of 80 \(most: activations\) \(\d{2} such layouts\); "
    )
    with pytest.raises(ValueError, match=told):
        _ = search(model("gpt-1t"), 64, topology("dgx-a100")).best
    with pytest.raises(ValueError, match="fp8 needs tensor cores that have it"):
        _ = search(model("gpt-13b"), 64, topology("dgx-a100"), precision="fp8").best


def test_axes_that_leave_no_layout_are_named() -> None:
    with pytest.raises(ValueError, match="no layout of gpt-13b on 32 GPUs has tensor 1, pipeline 1, data 8: leave one"):
        search(model("gpt-13b"), 256, topology("dgx-a100", nnodes=4), data=8, tensor=1, pipeline=1)


def test_the_command_prints_a_table_and_writes_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "prediction.json"
    arguments = "predict --model gpt-13b --cluster a100x32 --tensor 4 --pipeline 2 --data 4 --microbatch 2 --zero 1"
    assert main([*arguments.split(), "--samples", "1e6", "--price", "2", "--explain", "--json", str(target)]) == 0
    printed = capsys.readouterr().out
    assert all(
        word in printed for word in ("tensor parallel", "bubble", "activations", "MFU", "dollars", "Korthikanti")
    )
    written = json.loads(target.read_text())
    assert written["gpus"] == 32 and written["plan"]["tensor"] == 4 and written["step_seconds"] > 0


def test_the_command_is_readable_at_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = "predict --model gpt-13b --cluster a100x32 --tensor 4 --pipeline 2 --data 4 --microbatch 2 --zero 1"
    assert main([*arguments.split(), "--explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    # decisive defaults are shown; a term's second line is below its first
    assert "  bf16, attention flash2, fusion kernels" in lines
    at = next(number for number, line in enumerate(lines) if "tensor parallel: all-reduces" in line)
    assert lines[at + 1].startswith(" " * 15)


def test_every_field_of_a_plan_can_be_given_to_the_command(tmp_path: Path) -> None:
    target = tmp_path / "prediction.json"
    given = (
        "--batch 512 --tensor 2 --pipeline 1 --context 2 --data 16 --expert 8 --microbatch 1 --zero 3 --zero-ranks 8 "
        "--precision fp8 --no-overlap --overlap-tensor --no-sequence-parallel --recompute full --recomputed-layers 0.5 "
        "--gradients fp32 --attention flash3"
    )
    assert (
        main(["predict", "--model", "mixtral-8x7b", "--cluster", "h100x64", *given.split(), "--json", str(target)]) == 0
    )
    plan = json.loads(target.read_text())["plan"]
    assert (plan["expert"], plan["zero_ranks"], plan["precision"], plan["overlap"]) == (8, 8, "fp8", False)
    assert plan["overlap_tensor"] and not plan["sequence_parallel"] and plan["recomputed_layers"] == 0.5


def test_answers_are_one_line_where_a_notebook_shows_them() -> None:
    found = search(model("gpt-1.3b"), 64, topology("dgx-a100"))
    shown = repr(found)
    assert len(shown) < 250 and f"{len(found.found):,} layouts fit" in shown and repr(found.best) in shown
    assert re.fullmatch(r"Prediction\(gpt-1.3b on 8 a100-80gb: .* s a step, MFU .*%, .* of 80 GB\)", repr(found.best))
    none = search(model("gpt-1t"), 64, topology("dgx-a100"))
    assert none.found == () and "best" not in repr(none)
    assert "does not fit" in repr(next(out.made for out in none.rejected if out.made))


def test_a_gpu_without_bf16_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", "resnet50", "--cluster", "v100x8"]) == 0
    assert "bf16 (v100-32gb has none: at its rate in fp16)" in capsys.readouterr().out
    assert main(["predict", "--model", "resnet50", "--cluster", "v100x8", "--precision", "fp16"]) == 0
    assert "has none" not in capsys.readouterr().out


def test_short_and_long_runs_are_told_in_units_that_suit_them(capsys: pytest.CaptureFixture[str]) -> None:
    """ImageNet is an epoch of a minute and a dollar, not of 0.02 hours and 1 dollars."""
    assert main(["predict", "--model", "resnet50", "--cluster", "A100X8", "--samples", "1281167", "--price", "4"]) == 0
    told = capsys.readouterr().out.splitlines()[-1]
    assert re.fullmatch(r"1,281,167 samples: \d+\.?\d* seconds, 0\.\d\d GPU hours, 0\.\d\d dollars", told), told
    assert main(["predict", "--model", "gpt-13b", "--cluster", "a100x32", "--samples", "1.5e8", "--price", "2"]) == 0
    assert re.search(r": \d+\.?\d* days, \d+,\d+ GPU hours, \d+,\d+ dollars", capsys.readouterr().out)


def test_the_command_finds_the_layout_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "--model", "gpt-1.3b", "--cluster", "h100x8"]) == 0
    assert "best of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--model gpt-13 --cluster a100x32", "did you mean gpt-13b"),
        ("--model gpt-13b --cluster a100x12", "12 GPUs do not fill nodes of 8"),
        ("--model gpt-13b --cluster a100", "such as a100x32"),
        ("--model mlp-784 --cluster a100x8", "an MLP is named by its sizes from input to output: mlp-784x256x10"),
        ("--model mlp-784x10 --cluster a100x8 --sequence 128", "mlp-784x10 has no sequence length to change"),
        ("--model gpt-530b --cluster a100x2520", "batch 256 must be a multiple of microbatch x data = 1 x 3 = 3"),
        ("--model gpt-13b --cluster a100x8 --samples inf", "samples must be above 0"),
        ("--model gpt-13b --cluster a100x8 --set constants.passes_share=0", "constants.passes_share must be above 0"),
        ("--model gpt-13b --cluster a100x8 --set constants.straggle=-1", "constants.straggle must be at least 0"),
        ("--model gpt-13b --cluster m1x8", "unknown kind 'm1'"),
        ("--model gpt-13b --cluster a100x8 --tensor 3", "tensor x pipeline x context = 3 must divide 8 GPUs"),
        ("--model gpt-13b --cluster a100x8 --schedule zigzag", "labkit: schedule must be one of"),
        ("--model gpt-13b --cluster a100x8 --tensor 0", "tensor must be a whole number from 1 up, got 0"),
        ("--model gpt-13b --cluster a100x8 --json no/such/folder.json", "cannot write no/such/folder.json: No such"),
        ("--model gpt-13b --cluster a100x8 --samples 0", "samples must be above 0"),
        ("--model gpt-13b --cluster a100x8 --price 2", "--price needs --samples"),
        ("--model gpt-13b --cluster a100x8 --schedule zigzag", "schedule must be one of"),
        ("--model gpt-13b --cluster a100x8 --precision fp8", "not a100-80gb"),
        ("--model gpt-13b --cluster h100x8 --zero 3 --compression 1-bit --pipeline 1", "compression is of gradients"),
        ("--model resnet50 --cluster h100x8 --context 2", "context parallelism is predicted for transformers"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(arguments: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *arguments.split()]) == 2
    printed = capsys.readouterr()
    assert said in printed.err and not printed.out


def test_the_command_says_what_would_make_a_plan_fit(capsys: pytest.CaptureFixture[str]) -> None:
    layout = ["--tensor", "1", "--pipeline", "1", "--data", "8", "--microbatch", "4"]
    assert main(["predict", "--model", "gpt-13b", "--cluster", "a100x8", "--batch", "64", *layout]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "does not fit: stage 0 needs 187 GB more" in said and re.search(
        r"zero=3, recompute='full': [0-9.]+ GB, fits", said
    )


def test_choices_are_tried_one_by_one_and_a_long_search_shows_how_far_it_is() -> None:
    """530 billion parameters on 2,520 GPUs with attention free too, in a process whose standard error is a terminal."""
    program = (
        "from labkit.hardware import topology\n"
        "from labkit.predict import OneOf, model, search\n"
        "free = {'attention': OneOf(('parts', 'flash1', 'flash2'))}\n"
        "made = search(model('gpt-530b'), 2520, topology('dgx-a100', nnodes=315), **free)\n"
        "every = [*made.found, *(one.made for one in made.rejected if one.made)]\n"
        "print(len(every), sorted({one.plan.attention for one in every}))\n"
    )
    ours, theirs = pty.openpty()
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=theirs, text=True) as running:
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux's end of a terminal
            while part := os.read(ours, 1 << 16):
                shown += part
        os.close(ours)
        assert running.stdout is not None
        count, tried = running.stdout.read().strip().split(" ", 1)
    assert int(count) > 5000 and tried == "['flash1', 'flash2', 'parts']"
    assert b"layouts of gpt-530b" in shown
