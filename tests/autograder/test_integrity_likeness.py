"""Copies are found under eight disguises; independent work, correct or wrong, is not reported."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
import ring_answers
from ring_answers import BLANKS, RING, all_at_once, answers, filled
from ring_rewritten import REWRITTEN

from autograder.integrity.material import Material, material
from autograder.integrity.similar import alike, known_grams, own_fingerprints, passages, weight
from autograder.integrity.workers import Reading, readings

DISGUISES = {**ring_answers.DISGUISES, "all_at_once": all_at_once}


class Class:
    """Reads each text once."""

    def __init__(self) -> None:
        self.course: Material = material(RING)
        self._read: dict[str, Reading] = {}
        self.template = known_grams(self.read([self.course.template]))
        self.known = known_grams(self.read(self.course.known))

    def read(self, texts: Sequence[str]) -> list[Reading]:
        new = [text for text in dict.fromkeys(texts) if text not in self._read]
        read = readings((text, frozenset[str]()) for text in new)
        self._read.update(zip(new, read, strict=True))
        return [self._read[text] for text in texts]

    def pairs(self, texts: Sequence[str], known: frozenset[int] | None = None) -> set[tuple[int, int]]:
        own = [own_fingerprints(reading, self.known if known is None else known) for reading in self.read(texts)]
        return {(likeness.left, likeness.right) for likeness in alike(own, len(own))[0]}


@pytest.fixture(scope="module")
def people() -> Class:
    return Class()


def test_copies_are_found_and_independent_work_is_not(people: Class, capsys: pytest.CaptureFixture[str]) -> None:
    """In each class: ten answers, all variants and mutants, and a copy of each of the ten in one disguise."""
    honest = [*answers().values(), *people.course.known[1:]]
    figures = []
    for name, disguise in DISGUISES.items():
        draw = random.Random(name)
        copies = [disguise(source, draw) for source in answers().values()]
        assert not set(copies) & set(honest)
        found = people.pairs([*honest, *copies])
        copied = {(i, len(honest) + i) for i in range(len(copies))}
        figures.append((name, len(found & copied), len(found), len(copied)))
    with capsys.disabled():
        print("\n  copies      found  pairs found  precision  recall")
        for name, right, found_in_all, wanted in figures:
            print(f"  {name:20} {right:2}  {found_in_all:2}  {right / max(found_in_all, 1):.2f}  {right / wanted:.2f}")
    right, found_in_all, wanted = (sum(column) for column in list(zip(*figures, strict=True))[1:])
    assert right / found_in_all == 1.0, figures
    assert right / wanted >= 0.95, figures


def test_of_five_copies_rewritten_by_hand_four_are_found(people: Class) -> None:
    honest = answers()
    copies = [filled(people.course.template, blanks) for blanks in REWRITTEN.values()]
    found = people.pairs([*honest.values(), *copies])
    copied = {(list(honest).index(name), len(honest) + i) for i, name in enumerate(REWRITTEN)}
    assert found <= copied and len(found) >= 4


def test_no_pair_is_found_among_independent_answers_even_where_the_course_knows_the_template_only(
    people: Class,
) -> None:
    honest = [*answers().values(), *people.course.known[1:]]
    assert len(honest) > 30
    assert people.pairs(honest, people.template) == set()


def test_the_longest_blank_alone_is_enough(people: Class) -> None:
    """A learner copies one of the three long blanks and writes two."""
    found = 0
    pairs = list(itertools.pairwise(BLANKS))
    for taken, own in pairs:
        mixed = filled(people.course.template, (BLANKS[taken][0], *BLANKS[own][1:]))
        others = {name: source for name, source in answers().items() if name != own}
        found += people.pairs([mixed, *others.values()]) == {(0, 1 + list(others).index(taken))}
    assert found == len(pairs)


def test_passages_are_told_by_their_lines(people: Class) -> None:
    source = answers()["parity"]
    copy = ring_answers.reformatted(source, random.Random(1))
    left, right = people.read([source, copy])
    found = passages(left, right, people.known)
    lines, copied = source.splitlines(), copy.splitlines()
    told = {
        (lines[a - 1].strip(), copied[b - 1].split("  #")[0].strip())
        for p in found
        for a, b in zip(p.left, p.right, strict=True)
    }
    assert ("dist.send(shards[s], ring.right, group)",) * 2 in told
    assert sum(a == b for a, b in told) > len(told) / 2
    # material given to all is not reported
    assert not any("_shards(name" in a or "get_rank" in a for a, _ in told)


def test_what_most_have_weighs_nothing() -> None:
    assert weight(2, 30) == 1.0
    assert weight(2, 30) > weight(3, 30) > weight(8, 30) > weight(16, 30) == 0.0
    assert weight(2, 2) == weight(2, 3) == 1.0
