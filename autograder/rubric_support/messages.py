"""Results that must be computed from the learner's own sends and receives."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from labkit.checks import expect
from labkit.clusters import Run


def own_messages(run: Run) -> None:
    """Check that no collective of the library was used."""
    called = sorted({event.operation for event in run.trace.collectives()})
    expect(called, "library collectives called", look_at="only sends and receives are allowed").equals([])


def made_of_messages(
    run: Run, rank: int, wanted: Sequence[Tensor | None], what: str = "result", easier: Sequence[str] = ()
) -> None:
    """Check `run.values` against `wanted`, for a run in which the first message from `rank` was altered; None: any.

    The values do not show how they were computed: ranks might have communicated through a file. But whatever was
    computed from the altered message is larger by 1 in some places, on another rank at least.
    """
    carried = [
        v == w + 1 if isinstance(v, Tensor) and w is not None and v.shape == w.shape else None
        for v, w in zip(run.values, wanted, strict=True)
    ]
    with_it = [w if w is None or c is None else w + c.to(w.dtype) for w, c in zip(wanted, carried, strict=True)]
    expect(run.values, what, easier=easier).equals(with_it)
    seen = any(c is not None and bool(c.any()) for r, c in enumerate(carried) if r != rank)
    hint = "what is returned must be made of what other ranks have sent"
    expected = f"{what}: a message that was altered on its way shows in it"
    expect(seen, expected, look_at=hint, easier=easier).holds("no other rank's result has changed with the message")
    own_messages(run)


def summed(inputs: Sequence[Tensor]) -> Tensor:
    """Return the sum, added in the order of `inputs`; they are left unchanged."""
    total = inputs[0].clone()
    for tensor in inputs[1:]:
        total += tensor
    return total
