"""Charging operators on fake tensors: one that any rank has run before takes little more than a look-up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import is_grad_enabled

from labkit.clusters.virtual.device.charging import COUNTED, Accounting, bytes_to_create, resized
from labkit.clusters.virtual.device.fake import Answer, NewResult, Shapes, made
from labkit.clusters.virtual.device.fake import answer as answer_of
from labkit.clusters.virtual.device.fake import key as key_of
from labkit.clusters.virtual.device.functional_collectives import FunctionalCollectives
from labkit.clusters.virtual.device.memory import ACTIVATION, COMMUNICATION, OTHER
from labkit.clusters.virtual.device.operators import Operator, known, operator
from labkit.torch_versions.dispatch import DisableTorchDispatch
from labkit.torch_versions.fake_tensors import DEVICE_QUERY, FakeTensor, device_of
from labkit.torch_versions.tensors import IS_PARAMETER

Charge = float | tuple[int, int]
"""Seconds, or a change of memory: its category and bytes."""


class FakeAccounting(Accounting):
    """Accounting on fake tensors: an operator that any rank has run on such shapes takes little more than a look-up.

    What depends on more than shapes happens each time: marking parameters, counting new memory.
    """

    def __init__(self, shapes: Shapes, *rest: Any) -> None:
        super().__init__(*rest)
        self._shapes = shapes
        self._answers = shapes.answers[self._gpu]
        self.account = self._account
        self.known_updates: dict[Any, list[Charge]] = shapes.updates[self._gpu]
        """Charges of an optimizer's updates (adam_updates.py), for all ranks with this kind of GPU."""
        self._collectives = FunctionalCollectives()
        self._charge, self._compute = self._compute, self._charged
        self._seconds_charged: float | None = None

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is DEVICE_QUERY:  # half of all calls
            argument = args[0]
            return device_of(argument) if argument.__class__ is FakeTensor else NotImplemented
        for kind in types:
            if kind not in COUNTED:
                return NotImplemented  # a DTensor, for example: its operators on local tensors arrive here again
        op = known.get(id(function)) or operator(function)
        key = key_of(op, args, kwargs)
        answer = self._answers.get(key) if key is not None else None
        if answer is not None:
            return self._known(op, answer, args, kwargs)
        self._seconds_charged = None
        output = super().__torch_dispatch__(function, types, args, kwargs)
        if key is not None and key_of(op, args, kwargs) == key:  # else it has changed an argument's shape
            answer = answer_of(op, output, args, kwargs or {})
            if answer is not None:
                answer.seconds = self._seconds_charged
                self._answers[key] = answer
        return output

    @contextmanager
    def listing(self) -> Iterator[list[Charge]]:
        """List the charges within the context, in their order; the list is empty if there was more than charges.

        More: memory that stays or changes its category, and time that no operator took, as communication does.
        """
        charges: list[Charge] = []
        began, charge = self.account.now(), self._charge

        def listed(seconds: float) -> None:
            charges.append(seconds)
            charge(seconds)

        self.account.listed, self._charge = charges, listed
        try:
            yield charges
        finally:
            self.account.listed, self._charge = None, charge
        changed: Counter[int] = Counter()
        for item in charges:
            if isinstance(item, float):
                began += item
            else:
                changed[item[0]] += item[1]
        if -1 in changed or any(changed.values()) or began != self.account.now():
            charges.clear()

    def charge_again(self, charges: list[Charge]) -> None:
        """Charge what was listed, without operators."""
        charge, change = self._charge, self.account.change_again
        for item in charges:
            if isinstance(item, float):
                charge(item)
            else:
                change(*item)

    def _charged(self, seconds: float) -> None:
        self._seconds_charged = seconds
        self._charge(seconds)

    def _run(self, op: Operator, args: Any, kwargs: Any) -> Any:
        output = self._shapes.run(op, args, kwargs or {})
        if op.communicates:
            self._collectives.start(op.name, args, kwargs or {}, output)
        return output

    def _known(self, op: Operator, answer: Answer, args: Any, kwargs: Any) -> Any:
        """An operator with known results and cost, in the same order as when it is computed."""
        account = self._account
        for number in answer.marked:
            if getattr(args[number], IS_PARAMETER):
                account.is_parameter(args[number])
        if answer.view is not None:  # half of all operators
            with DisableTorchDispatch():
                return made(answer.view, args, kwargs)
        if op.creates:
            account.must_fit(bytes_to_create(args, kwargs or {}))
        if op.seeded and self._claim is not None:
            self._claim()
        with DisableTorchDispatch():
            outputs = [made(result, args, kwargs) for result in answer.results]
        output = outputs[0] if answer.kind is FakeTensor else answer.kind(outputs) if outputs else None
        if op.communicates:
            self._collectives.start(op.name, args, kwargs or {}, output)
        if op.fresh:
            category = COMMUNICATION if op.free and op.communicates else self._category(False, args, kwargs)
            if category == OTHER and not op.free and is_grad_enabled() and _differentiable(args):
                category = ACTIVATION
            for tensor, result in zip(outputs, answer.results, strict=True):
                if result.__class__ is NewResult:
                    if result.nbytes >= 0:
                        account.hold_new(tensor.untyped_storage(), result.nbytes, category)
                elif tensor is not None:
                    account.hold(tensor, category)
        if op.grows:
            resized(account, args, kwargs)
        if answer.seconds is not None:
            self._charge(answer.seconds)
        return output


def _differentiable(args: Any) -> bool:
    """Whether a tensor of these requires a gradient."""
    for argument in args:
        if argument.__class__ is FakeTensor:
            if argument.requires_grad:
                return True
        elif argument.__class__ is list and any(i.__class__ is FakeTensor and i.requires_grad for i in argument):
            return True
    return False
