"""Numbers that depend on data, declared for runs on fake tensors."""

from __future__ import annotations

from textwrap import dedent

import pytest

from labkit import Job, Run, catalogue, virtual

ACCUMULATION = """
import torch, torch.distributed as dist
from labkit import suppose
from labkit.exercises import gradient_accumulation

dist.init_process_group()
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
accumulator = gradient_accumulation.GradientAccumulator(model, optimizer, steps=2, max_norm=0.01)
with suppose(norm=2.5, present=dist.get_world_size()):
    for _ in range(2):
        accumulator.backward(model(torch.randn(4, 64)).square().mean())
        stepped = accumulator.step()
stepped
"""


def run(source: str, ranks: int = 1, fake: bool = True) -> Run:
    exercise = catalogue.find("gradient_accumulation")
    modules = {one.name: one.source("solution")[0] for one in (*exercise.builds_on, exercise)}
    return virtual(nproc_per_node=ranks, fake=fake).run(Job(source=source, modules=modules))


def test_a_solution_that_asks_for_a_norm_does_the_same_on_fake_tensors() -> None:
    real, fake = (run(ACCUMULATION, 4, is_fake).raise_if_failed() for is_fake in (False, True))
    assert real.values == fake.values == [True] * 4
    happened = [[(e.rank, e.kind, e.operation, e.nbytes) for e in one.trace.events] for one in (real, fake)]
    assert happened[0] == happened[1]
    assert fake.trace.seconds == pytest.approx(real.trace.seconds)


FORMS = """
import torch
from labkit import suppose

answers = []
unknown = torch.randn(2, 2).sum()
with suppose(unknown=-0.5):
    answers += [unknown.item(), float(unknown)]
    if (
        unknown.abs().item()
        == -0.5
    ):
        answers.append("head")
    with suppose(table=torch.tensor([[1, 2], [3, 4]])):
        table = torch.randn(2, 2).argsort()
        answers.append(table.tolist())
        answers.append(float(unknown))
known, other = torch.tensor([7, 8]), torch.randint(9, (1,))
with suppose(other=3):
    answers += [known.tolist(), other.item()]
answers
"""


def test_the_name_stands_in_the_statement_that_asks() -> None:
    answers = run(FORMS).raise_if_failed().values[0]
    assert answers == [-0.5, -0.5, "head", [[1, 2], [3, 4]], -0.5, [7, 8], 3]


@pytest.mark.parametrize(
    ("supposed", "said"),
    [
        ("norm=1, count=2, nrom=2", "no number of a fake tensor was asked for at a line with `nrom`"),
        ("total=1", r"say what it would be \(of `labkit.suppose`, this line has no `total`\)"),
        ("norm=1, unknown=2", "this line has `norm` and `unknown`"),
        ("norm=[1, 2]", r"norm has the shape \(2,\); asked for is \(\)"),
        ("norm=1, count=1.5", "count=1.5 is asked for as torch.int64"),
    ],
)
def test_what_does_not_fit_is_said_at_its_line(supposed: str, said: str) -> None:
    source = f"""
        import torch
        from labkit import suppose
        unknown = torch.randn(3)
        with suppose({supposed}):
            norm = unknown.norm().item()
            count = unknown.argmax().item()
    """
    with pytest.raises(Exception, match=said):
        run(dedent(source)).raise_if_failed()


def test_real_tensors_keep_their_numbers() -> None:
    source = """
        import torch
        from labkit import suppose
        with suppose(norm=1.0, never=2.0):
            norm = torch.ones(4).norm().item()
        norm
    """
    assert run(dedent(source), fake=False).raise_if_failed().values == [2.0]
