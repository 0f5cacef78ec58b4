"""Mutants and variants: edits of correct solutions, and the commands that show them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import second_exercise

from autograder.mutants import Mutants, UnknownName, Variants, WrongEdit
from autograder.mutants.edits import edited, parsed
from labkit import catalogue

BASE = """def half(x):
    if x:
        return x / 2

    return x
"""


def changed(change: str) -> str:
    return edited(BASE, parsed(change)[1])


def test_lines_are_replaced_wherever_they_are_indented() -> None:
    says, edits = parsed("""
        It doubles.

        - return x / 2
        + return x * 2
    """)
    assert says == "It doubles."
    assert edited(BASE, edits) == BASE.replace("x / 2", "x * 2")


def test_indentation_within_an_edit_is_kept() -> None:
    wanted = "def half(x):\n    return x / 2\n\n    return x\n"
    assert changed("- if x:\n-     return x / 2\n+ return x / 2") == wanted


def test_lines_with_two_spaces_say_where() -> None:
    assert changed("  if x:\n+     x += 1\n      return x / 2") == BASE.replace("if x:\n", "if x:\n        x += 1\n")


def test_empty_lines_and_edits_one_after_the_other() -> None:
    """The second edit applies to the result of the first one."""
    assert changed("-     return x / 2\n-\n- return x\n+     return 1\n\n- return 1\n+ return 2") == (
        "def half(x):\n    if x:\n        return 2\n"
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ("- return y\n+ return x", "must be there once, and are not there:\n    return y"),
        ("- return x / 2\n- return x\n+ return 1", "are not there:\n    return x / 2\n    return x"),
        ("+ return x", "needs a line of the module"),
        ("- return x\n+ return 1\nwhat is this", "begins with '- ', '\\+ ' or two spaces"),
        ("- return x\n+ return x / 2\n\n- return x / 2\n+ return 1", "are there 2 times:\n    return x / 2"),
    ],
)
def test_what_does_not_fit_is_named(change: str, problem: str) -> None:
    with pytest.raises(WrongEdit, match=problem):
        changed(change)


@pytest.fixture
def exercise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> catalogue.Exercise:
    second_exercise.add_to(tmp_path)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    return catalogue.find(second_exercise.NAME)


def mutants(exercise: catalogue.Exercise) -> Mutants:
    return Mutants(exercise)


def test_an_edit_that_does_not_fit_names_exercise_and_mutant(exercise: catalogue.Exercise) -> None:
    path = mutants(exercise).path
    path.write_text(path.read_text().replace("          sending.wait()", "          sent.wait()"))
    with pytest.raises(WrongEdit, match=r"pass_it_on, mutant sends_twice: .*\n +sent.wait\(\)"):
        mutants(exercise).text("sends_twice")


def test_a_base_that_is_missing_is_named(exercise: catalogue.Exercise) -> None:
    path = mutants(exercise).path
    path.write_text(path.read_text().replace('loses={"messages"}', 'loses={"messages"}, base="waits"'))
    with pytest.raises(WrongEdit, match="pass_it_on, mutant sends_twice: no variant is called 'waits'"):
        mutants(exercise).text("sends_twice")


def test_a_mutant_without_an_edit_is_a_module_of_its_own(exercise: catalogue.Exercise) -> None:
    found = mutants(exercise)
    text = '"""Nothing is sent."""\n'
    found.folder.mkdir()
    (found.folder / "sends_nothing.py").write_text(text)
    with found.path.open("a") as table:
        table.write('MUTANTS["sends_nothing"] = Mutant(0, loses={"messages"})\n')
    assert (found.text("sends_nothing"), found.says("sends_nothing")) == (text, "Nothing is sent.")


VARIANTS = '''"""Variants of pass_it_on."""

from autograder.mutants import Variant

VARIANTS = {
    "waits_in_a_loop": Variant().edited("""
        Right: waits in a loop.

        - sending.wait()
        + for work in [sending]:
        +     work.wait()
    """),
    "names_it": Variant(base="whole").edited("""
        Right: another name.

        - x = 1
        + y = 1
    """),
}
'''
WHOLE = '"""Right: a whole module."""\n\nx = 1\n'


@pytest.fixture
def variants(exercise: catalogue.Exercise) -> Variants:
    found = Variants(exercise)
    assert not found
    found.folder.mkdir()
    (found.folder / "whole.py").write_text(WHOLE)
    found.path.write_text(VARIANTS)
    return Variants(exercise)


def test_variants_are_edits_and_whole_modules(exercise: catalogue.Exercise, variants: Variants) -> None:
    solution = exercise.source("solution")[0]
    looped = solution.replace("    sending.wait()", "    for work in [sending]:\n        work.wait()")
    texts = {"names_it": WHOLE.replace("x", "y"), "waits_in_a_loop": looped, "whole": WHOLE}
    assert {name: variants.text(name) for name in variants} == texts and list(variants) == list(texts)
    assert [variants.base(name) for name in variants] == [WHOLE, solution, solution]
    says = ["Right: another name.", "Right: waits in a loop.", "Right: a whole module."]
    assert [variants.says(name) for name in variants] == says


def test_a_mutant_may_edit_a_variant_that_is_an_edit(exercise: catalogue.Exercise, variants: Variants) -> None:
    path = mutants(exercise).path
    path.write_text(
        path.read_text()
        .replace('loses={"messages"}', 'loses={"messages"}, base="waits_in_a_loop"')
        .replace("          sending.wait()", "              work.wait()")
    )
    assert mutants(exercise).base("sends_twice") == variants.text("waits_in_a_loop")
    assert "work.wait()\n    again = " in mutants(exercise).text("sends_twice")


def test_a_variant_that_is_both_an_edit_and_a_module_is_named(exercise: catalogue.Exercise, variants: Variants) -> None:
    (variants.folder / "names_it.py").write_text(WHOLE)
    with pytest.raises(WrongEdit, match=r"pass_it_on: names_it is both in variants.py and a whole module"):
        len(Variants(exercise))


def test_unknown_names_get_the_nearest(exercise: catalogue.Exercise) -> None:
    with pytest.raises(UnknownName, match="'send_twice'; did you mean sends_twice"):
        mutants(exercise)["send_twice"]


def labkit(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "labkit", *words], capture_output=True, text=True)


def test_the_command_shows_module_difference_and_list(exercise: catalogue.Exercise) -> None:
    assert labkit("mutants", "show", "pass_it_on", "sends_twice").stdout == second_exercise.SENDS_TWICE
    difference = labkit("mutants", "diff", "pass_it_on", "sends_twice").stdout.splitlines()
    assert difference[:2] == ["--- solution", "+++ sends_twice"]
    assert [line for line in difference[2:] if line[0] in "+-"] == [
        "+    again = dist.isend(tensor, (rank + 1) % size)",
        "+    dist.recv(received, (rank - 1) % size)",
        "+    again.wait()",
    ]
    listed = labkit("mutants", "show", "pass_it_on").stdout
    assert "sends_twice" in listed and "Each rank sends its tensor twice." in listed and "solution" in listed


def test_variants_have_a_command_of_the_same_form(variants: Variants) -> None:
    assert labkit("variants", "show", "pass_it_on", "waits_in_a_loop").stdout == variants.text("waits_in_a_loop")
    difference = labkit("variants", "diff", "pass_it_on", "names_it").stdout.splitlines()
    assert difference[:2] == ["--- whole", "+++ names_it"] and difference[-2:] == ["-x = 1", "+y = 1"]
    listed = labkit("variants", "show", "pass_it_on").stdout
    assert "Right: waits in a loop." in listed and "whole module" in listed and "Variants of" in listed
    unknown = labkit("variants", "show", "pass_it_on", "sends_twice")
    assert unknown.returncode == 2 and "no variant of pass_it_on is called 'sends_twice'" in unknown.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("pass_on", "sends_twice"), "no exercise is called 'pass_on'; did you mean pass_it_on"),
        (("pass_it_on", "send_twice"), "no mutant of pass_it_on is called 'send_twice'; did you mean sends_twice"),
    ],
)
def test_the_command_offers_near_names(exercise: catalogue.Exercise, words: tuple[str, str], problem: str) -> None:
    done = labkit("mutants", "diff", *words)
    assert done.returncode == 2 and problem in done.stderr and "Traceback" not in done.stderr
