"""%%exercise, %check, %hint, %reset_exercise and %solution in a real kernel, on the ring exercise."""

from pathlib import Path

import pytest

from autograder.cells import exercise_of, module_text
from labkit.catalogue import find

RING = find("ring_allreduce")
SOLUTION, _ = RING.source("solution")
FIRST_LOOP = "for step in range(ring.size - {}):\n        outgoing"
ONE_ROUND_SHORT = SOLUTION.replace(FIRST_LOOP.format(1), FIRST_LOOP.format(2))
USE = """%%torchrun -n 4
import torch, torch.distributed as dist
from labkit.exercises import ring_allreduce
dist.init_process_group()
ring_allreduce.ring_all_reduce(torch.full((5,), 1.0 + dist.get_rank()))"""


def folder(kernel) -> Path:
    return Path(kernel.run("import os\nprint(os.environ['LABKIT_WORKSPACE'])").stdout.strip())


def test_without_a_name_a_magic_takes_the_exercise_of_the_notebook(kernel):
    assert "type its name: %check EXERCISE" in kernel.run("%check").stderr
    kernel.run("__session__ = '/home/me/workspace/phase1_data_parallel/02_collectives.ipynb'")
    assert "`broadcast` is not written yet" in kernel.run("%hint").displays[0]["text/markdown"]
    kernel.run(f"%%exercise ring_allreduce\n{RING.source('template')[0]}")
    assert "`_exchange` is not written yet" in kernel.run("%hint").displays[0]["text/markdown"]


def test_the_cell_is_the_module_here_and_on_every_rank(kernel):
    outputs = kernel.run(f"%%exercise phase3_multi_node/ring_allreduce\n{SOLUTION}")
    assert outputs.stdout == (
        "saved as workspace/phase3_multi_node/ring_allreduce.py; nothing is missing\n"
        "on ranks: from labkit.exercises import ring_allreduce\n"
    )
    saved = (folder(kernel) / "phase3_multi_node" / "ring_allreduce.py").read_text()
    assert saved.splitlines()[1:] == SOLUTION.splitlines()
    assert kernel.run("ring_allreduce.ring_all_reduce is ring_all_reduce").result == "True"
    for cluster in ("local", "virtual"):
        kernel.run(f"%cluster {cluster}")
        assert kernel.run(USE).result == "[0-3] float32[5] [10, 10, 10, 10, 10]"


@pytest.mark.parametrize(
    "above", ["%%time\n", "# mine, second try\n\n", "%%time\n# mine\n%%capture out\n", "\n\n%%capture out\n"]
)
def test_what_may_be_above_the_exercise_is_saved_as_it_is_graded(kernel, above):
    cell = f"{above}%%exercise ring_allreduce\n{SOLUTION}"
    assert kernel.run(cell).error == ""
    saved = (folder(kernel) / "phase3_multi_node" / "ring_allreduce.py").read_text()
    start = len(above.splitlines()) + 1
    assert saved.splitlines()[start:] == SOLUTION.splitlines()
    assert saved.splitlines()[start:] == module_text(cell).splitlines()[start:]
    assert exercise_of(cell) == "phase3_multi_node/ring_allreduce"
    error = kernel.run(f"{above}%%exercise ring_allreduce\nx = 1\n\nx / 0").error
    assert f"ring_allreduce.py:{start + 3}" in error and f"----> {start + 3} x / 0" in error


def test_a_whole_cell_may_be_indented(kernel):
    cell = "    %%exercise ring_allreduce\n    rate = 1"
    assert "saved as" in kernel.run(cell).stdout
    assert module_text(cell) == "\nrate = 1"


@pytest.mark.parametrize("magic", ["%%timeit", "%%prun"])
def test_other_magics_above_the_exercise_are_refused_at_once(kernel, magic):
    kernel.run(f"%%exercise ring_allreduce\n{SOLUTION}")
    outputs = kernel.run(f"{magic}\n%%exercise ring_allreduce\nrate = 1")
    assert f"not saved: {magic} is above %%exercise, where only %%time and %%capture may be" in outputs.stderr
    assert "Remove that line" in outputs.stderr
    assert "rate = 1" not in (folder(kernel) / "phase3_multi_node" / "ring_allreduce.py").read_text()


def test_what_the_contract_still_wants_is_named(kernel):
    outputs = kernel.run("%%exercise ring_allreduce\ndef ring_all_reduce(tensor):\n    return tensor")
    assert "; still missing: ring_all_gather, ring_reduce_scatter\n" in outputs.stdout


def test_todos_left_open_are_named_once_each(kernel):
    template, _ = find("mixed_precision").source("template")
    outputs = kernel.run(f"%%exercise mixed_precision\n{template}")
    assert "; still missing: the code for TODO 1, 2, 3, 4\n" in outputs.stdout


def test_a_module_that_raises_when_imported_is_saved_and_that_is_said(kernel):
    outputs = kernel.run("%%exercise ring_allreduce\nrate = 1 / 0")
    assert outputs.stdout.startswith("saved as workspace/phase3_multi_node/ring_allreduce.py, but importing it fails")
    assert "ZeroDivisionError" in outputs.error


def test_a_cell_that_does_not_parse_is_not_saved(kernel):
    kernel.run(f"%%exercise ring_allreduce\n{SOLUTION}")
    outputs = kernel.run("%%exercise ring_allreduce\nx = 1\n\ndef ring_all_reduce(:")
    assert outputs.stdout == "not saved: %check and the ranks still use the last saved version, or the template\n"
    error = outputs.error
    assert ", line 4\n    def ring_all_reduce(:" in error and error.endswith("SyntaxError: invalid syntax")
    assert "ring_reduce_scatter" in (folder(kernel) / "phase3_multi_node" / "ring_allreduce.py").read_text()


def test_an_error_in_the_module_shows_the_cells_line_here_and_on_ranks(kernel):
    error = kernel.run("%%exercise ring_allreduce\nx = 1\n\nx / 0").error
    assert "phase3_multi_node/ring_allreduce.py:4" in error and "----> 4 x / 0" in error
    assert "labkit/" not in error
    kernel.run("\n%%exercise ring_allreduce\n\ndef ring_all_reduce(tensor):\n    tensor.shaape\n")
    kernel.run("%cluster virtual")
    error = kernel.run(USE).error
    assert "AttributeError on every rank" in error and "----> 5     tensor.shaape" in error
    assert "line 5: ring_allreduce.ring_all_reduce(torch.full((5,), 1.0 + dist.get_rank()))" in error


def test_a_misspelt_or_unqualified_name_is_answered_with_the_right_one(kernel):
    kernel.run(f"%%exercise ring_allreduce\n{SOLUTION}")
    kernel.run("%cluster virtual")
    error = kernel.run("%%torchrun -n 2\nring_reduce_scater(1)").error
    assert "name 'ring_reduce_scater' is not defined; did you mean 'ring_allreduce.ring_reduce_scatter'?" in error
    assert "from labkit.exercises import ring_allreduce" in error
    error = kernel.run("%%torchrun -n 2\nring_reduce_scatter(1)").error
    assert "from labkit.exercises import ring_allreduce" in error
    error = kernel.run("%%torchrun -n 2\nimport torch.distributed as dist\nall_reduce(1)").error
    assert "did you mean 'dist.all_reduce'?" in error
    kernel.run("learning_rate = 0.1")
    error = kernel.run("%%torchrun -n 2\nprint(learnin_rate)").error
    assert "did you mean learning_rate? learning_rate is defined in the notebook, not on the ranks" in error


def test_a_name_that_a_module_lacks_is_not_looked_for_in_the_notebook(kernel):
    kernel.run("learning_rate = 0.1\n%cluster virtual")
    call = "%%torchrun -n 2\nfrom labkit.exercises import ring_allreduce\nring_allreduce.ring_all_reduce()"
    kernel.run("%%exercise ring_allreduce\ndef ring_all_reduce():\n    return learning_rate")
    error = kernel.run(call).error
    assert "define or import it in phase3_multi_node/ring_allreduce.py, which sees no other names" in error
    assert "notebook" not in error and "this cell" not in error
    kernel.run("%%exercise ring_allreduce\nlearning_rates = 1\ndef ring_all_reduce():\n    return learning_rate")
    error = kernel.run(call).error
    assert "name 'learning_rate' is not defined; did you mean 'learning_rates'?" in error
    assert "notebook" not in error and "this cell" not in error


def test_check_reports_and_draws_the_first_wrong_result(kernel):
    assert ONE_ROUND_SHORT != SOLUTION
    kernel.run(f"%%exercise ring_allreduce\n{ONE_ROUND_SHORT}")
    report, picture = kernel.run("%check ring_allreduce --seed 7").displays
    assert "FAIL 0/3   every rank ends with the sum of all ranks" in report["text/plain"]
    assert 'role="listitem"' in report["text/html"]
    assert "image/png" in picture and picture["text/plain"] == "<Grid of whose part is in which chunk>"
    assert "Ranks 0-3: chunk 0 with nothing but rank 0" in picture["text/html"]
    kernel.run(f"%%exercise ring_allreduce\n{SOLUTION}")
    (report,) = kernel.run("%check ring_allreduce").displays
    assert "25 of 25 points (your module, on virtual ranks)" in report["text/plain"]


def test_check_shows_how_far_it_is_and_takes_that_away(kernel):
    kernel.run(f"%%exercise ring_allreduce\n{SOLUTION}")
    outputs = kernel.run("%check ring_allreduce --cluster local", watched=True)
    kinds = [kind for kind, _ in outputs.messages]
    assert any("of 8: " in data["text/plain"] for data in outputs.displays[:-1])
    assert kinds.index("clear_output") == len(kinds) - 2, "only the report follows"
    assert "25 of 25 points (your module, on local ranks)" in outputs.displays[-1]["text/plain"]


def test_a_hint_is_markdown_for_the_todo_that_is_not_written_and_shows_no_earlier_one(kernel):
    half = RING.source("template")[0].replace("raise NotImplementedError()", "return", 1)
    kernel.run("from labkit.catalogue import find\nfrom labkit.checks.guidance import hints")
    kernel.run("hints.forget(find('ring_allreduce'))")
    kernel.run(f"%%exercise ring_allreduce\n{half}")
    (first,), (second,) = kernel.run("%hint").displays, kernel.run("%hint").displays
    assert first["text/markdown"].startswith("**TODO 2, hint 1 of 3** · `ring_reduce_scatter` is not written yet\n\n")
    assert first["text/plain"].startswith("TODO 2, hint 1 of 3 (`ring_reduce_scatter` is not written yet)\n")
    assert second["text/markdown"].startswith("**TODO 2, hint 2 of 3**") and "hint 1" not in second["text/markdown"]
    (fourth,) = kernel.run("%hint 4").displays
    assert fourth["text/markdown"].startswith("**TODO 4, hint 1 of 3**\n\n")
    (taken,) = kernel.run("%hint --all").displays
    assert [line for line in taken["text/plain"].splitlines() if line.startswith("TODO")] == [
        "TODO 2, hint 1 of 3",
        "TODO 2, hint 2 of 3",
        "TODO 4, hint 1 of 3",
    ]
    assert "no hints for TODO 5" in kernel.run("%hint 5").stderr


def test_full_marks_lead_on_to_the_next_notebook_and_the_reference(kernel):
    trainer, _ = find("trainer").source("solution")
    kernel.run(f"%%exercise trainer\n{trainer.replace('def start_equal', '# mine' + chr(10) + '    def start_equal')}")
    (report,) = kernel.run("%check").displays
    assert 'href="../phase2_advanced/05_gradient_accumulation.ipynb"' in report["text/html"]
    assert "# mine" in report["text/html"]
    assert "next: 05 Gradient accumulation (../phase2_advanced/05_gradient_accumulation.ipynb)" in report["text/plain"]
    (shown,) = kernel.run("%solution --diff").displays
    assert "-     # mine" in shown["text/plain"] and "<table" in shown["text/html"]


def test_the_graded_cell_shows_its_report_and_returns_points_that_nbgrader_can_read(kernel):
    outputs = kernel.run("from labkit import grade\ngrade('ring_allreduce')")
    ((kind, content),) = [(kind, content) for kind, content in outputs.messages if "data" in content]
    assert kind == "execute_result" and content["data"]["text/plain"] == "0.0"
    assert "0 of 25 points" in content["data"]["text/html"]


def test_reset_keeps_what_was_written_and_offers_the_template(kernel):
    kernel.run(f"%%exercise ring_allreduce\n{SOLUTION}\n# mine")
    outputs = kernel.run("%reset_exercise ring_allreduce")
    kept = outputs.stdout.removeprefix("your version is kept as ").strip()
    assert (folder(kernel).parent / kept).read_text().endswith("# mine\n")
    (cell,) = [p for p in outputs.payload if p["source"] == "set_next_input"]
    assert cell["text"].startswith("%%exercise phase3_multi_node/ring_allreduce\n")
    assert "NotImplementedError" in cell["text"] and "BEGIN SOLUTION" not in cell["text"]
    assert "you had no saved version" in kernel.run("%reset_exercise ring_allreduce").stdout
    (report, *_) = kernel.run("%check ring_allreduce").displays
    assert "0 of 25 points (the template" in report["text/plain"]


def test_solution_is_shown_only_where_it_is_released(kernel, tmp_path):
    (shown,) = kernel.run("%solution ring_allreduce").displays
    assert "def ring_all_reduce" in shown["text/plain"] and "SOLUTION" not in shown["text/plain"]
    released = tmp_path / "templates" / "phase3_multi_node"
    released.mkdir(parents=True)
    (released / "ring_allreduce.py").write_text(RING.source("template")[0])
    kernel.run(f"os.environ['LABKIT_ROOT'] = {str(tmp_path)!r}")
    try:
        assert "has not been released" in kernel.run("%solution ring_allreduce").stderr
    finally:
        kernel.run("del os.environ['LABKIT_ROOT']")


@pytest.mark.parametrize("magic", ["%check", "%hint", "%solution", "%reset_exercise", "%%exercise"])
def test_an_unknown_exercise_is_answered_with_near_ones(kernel, magic):
    outputs = kernel.run(f"{magic} ring_allreduc" + "\nx = 1" * magic.startswith("%%"))
    assert outputs.stderr == ("UsageError: no exercise is called 'ring_allreduc'; did you mean ring_allreduce?\n")


def test_a_player_leaves_a_picture_for_those_without_a_kernel(kernel):
    outputs = kernel.run(
        "from labkit.notebook import step_through\nfrom labkit.plots import ring_rounds\n"
        "step_through(lambda round: ring_rounds(4, round), last=6)"
    )
    picture, player = outputs.displays
    assert "image/png" in picture and "after 0 of 6 rounds" in picture["text/plain"]
    assert list(player) == ["application/vnd.jupyter.widget-view+json"]
