"""Stages of a pipeline: the parameters of the fullest one, counted by hand."""

from __future__ import annotations

import pytest

from labkit.predict.costs.stages import held_parameters
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan

VOCAB, WIDTH = 1000, 8
MATRIX = VOCAB * WIDTH


def model(tied: bool) -> Transformer:
    return Transformer("small", layers=3, width=WIDTH, heads=1, vocab=VOCAB, biases=False, rotary=True, tied=tied)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_a_pipeline_holds_the_head_on_its_last_stage_though_it_is_tied(tied: bool) -> None:
    transformer = model(tied)
    layer = transformer.layer_parameters
    assert layer < MATRIX
    last_is_fullest = held_parameters(transformer, Plan(4, pipeline=2), [1, 2])
    assert last_is_fullest == 2 * layer + transformer.head_parameters + tied * MATRIX
    assert last_is_fullest >= 2 * layer + MATRIX
    assert held_parameters(transformer, Plan(4, pipeline=2), [2, 1]) == 2 * layer + transformer.embedding_parameters


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_without_a_pipeline_a_tied_head_is_no_copy(tied: bool) -> None:
    transformer = model(tied)
    ends = MATRIX if tied else 2 * MATRIX
    held = held_parameters(transformer, Plan(4), [3])
    assert held == 3 * transformer.layer_parameters + transformer.embedding_parameters + transformer.head_parameters
    assert held >= 3 * transformer.layer_parameters + ends
