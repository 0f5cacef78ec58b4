"""%explain: a word, an event of a trace, the last error, in place and with links that hold where the notebook is."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from labkit import Job, virtual
from labkit.catalogue import find
from labkit.notebook import explaining, failures
from labkit.search.explanations import entries, explain_error, explain_word
from labkit.start import own_copy


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[InteractiveShell]:
    monkeypatch.delattr(sys, "last_value", raising=False)
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()  # displays go to the one that is the instance
    for magic in explaining.magics():
        magic.register(shell)
    yield shell
    InteractiveShell.clear_instance()


def run(shell: InteractiveShell, line: str) -> tuple[str, str]:
    """What a cell shows as Markdown, and what it prints, its error included."""
    with capture_output() as captured:
        shell.run_cell(line)
    return "\n".join(
        output.data.get("text/markdown", "") for output in captured.outputs
    ), captured.stdout + captured.stderr


@pytest.mark.parametrize(
    ("word", "title"),
    [
        ("bucket", "bucket"),
        ("all_reduce", "all-reduce"),
        ("irecv", "receive"),
        ("Tensor parallelism", "tensor parallelism"),
        ("job", "job, run"),
        ("DeadlockError", "One rank skips a collective"),
    ],
)
def test_words_events_and_types_of_errors(shell: InteractiveShell, word: str, title: str) -> None:
    shown, _ = run(shell, f"%explain {word}")
    assert shown.startswith(f"**{title}**\n"), shown


def test_an_unknown_word_gets_similar_ones(shell: InteractiveShell) -> None:
    _, printed = run(shell, "%explain parallel")
    assert "no page explains 'parallel'; did you mean" in printed and "data parallelism" in printed


def test_the_last_error_of_ranks(shell: InteractiveShell) -> None:
    program = (
        "import torch.distributed as dist\ndist.init_process_group()\nif dist.get_rank() == 0:\n    dist.barrier()"
    )
    shell.user_ns["failed"] = virtual(nproc_per_node=2).run(Job(source=program))
    assert "no cell has failed yet" in run(shell, "%explain")[1]
    run(shell, "failed.raise_if_failed()")
    shown, _ = run(shell, "%explain")
    assert shown.startswith("**One rank skips a collective**\n") and "**Fix**" in shown


def test_the_last_error_of_the_notebook(shell: InteractiveShell) -> None:
    run(shell, "import torch\ntorch.ones(1).sum().backward()")
    assert run(shell, "%explain")[0].startswith("**The loss has no graph**\n")
    run(shell, "1 / 0")
    assert "no page has this error: ZeroDivisionError: division by zero" in run(shell, "%explain")[1]


def test_after_an_error_the_page_about_it_is_named(shell: InteractiveShell) -> None:
    failures.install(shell)
    failures.install(shell)
    program = (
        "import torch.distributed as dist\ndist.init_process_group()\nif dist.get_rank() != 2:\n    dist.barrier()"
    )
    shell.user_ns["failed"] = virtual(nproc_per_node=4).run(Job(source=program))
    named = "more:\x1b[0m %explain shows “{}”"
    printed = run(shell, "failed.raise_if_failed()")[1]
    assert printed.count(named.format("One rank skips a collective")) == 1
    printed = run(shell, "import torch\ntorch.ones(1).sum().backward()")[1]
    assert printed.count(named.format("The loss has no graph")) == 1
    for without_page in ("1 / 0", "1 + lr", "%explain xyzzy"):
        assert "more:" not in run(shell, without_page)[1]


@pytest.mark.parametrize(
    ("error", "title"),
    [
        ("mat1 and mat2 shapes cannot be multiplied (8x16 and 4x3)", "Shapes that do not fit after sharding"),
        ("cannot be multiplied", None),
    ],
)
def test_numbers_and_shapes_may_be_others_than_on_the_page(error: str, title: str | None) -> None:
    found = explain_error([f"RuntimeError: {error}"])
    assert (found and found.title) == title


def test_the_page_about_an_error_is_the_most_specific_one() -> None:
    call = "MismatchError: call number 3 in the group of ranks 0-7 differs: rank 0 called {} (a), rank 1 called {} (b)"
    for calls, title in (
        (("all_reduce(float64[9], SUM)", "all_reduce(float32[9], SUM)"), "dtypes that differ"),
        (("all_reduce(float64[9], SUM)", "barrier()"), "Ranks call different collectives"),
    ):
        found = explain_error([call.format(*calls)])
        assert found is not None and found.title == title
    symptoms = [entry for entry in entries("troubleshooting.md") if entry.errors]
    assert [entry for entry in symptoms if explain_error(["\n".join(entry.errors)]) != entry] == []


def test_a_consequence_does_not_hide_its_cause() -> None:
    errors = ["RuntimeError: expected m1 and m2 to have the same dtype, but got: c10::BFloat16 != float"]
    found = explain_error([*errors, "RuntimeError: Connection closed by peer [127.0.0.1]:5516"])
    assert found is not None and found.title == "Two dtypes in one product"


def test_links_lead_to_own_notebooks_and_to_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = tmp_path / "Meine Übungen (1)"
    monkeypatch.setenv("LABKIT_WORKSPACE", str(workspace))
    own_copy(find("ddp"))
    entry = explain_word("bucket")
    assert entry is not None
    folder = workspace / "phase1_data_parallel"
    links = re.findall(r"\]\(([^)#]+)", explaining.shown(entry, folder))
    assert links[0] == "../phase3_multi_node/11_ddp.ipynb"
    assert all(Path(os.path.normpath(folder / unquote(link))).is_file() for link in links) and len(links) == 2


def test_each_word_is_explained_once() -> None:
    titles = [part for entry in entries("glossary.md") for part in entry.title.lower().split(", ")]
    assert len(titles) > 60 and len(set(titles)) == len(titles)
    assert [entry.title for entry in entries("glossary.md") if not entry.text] == []
