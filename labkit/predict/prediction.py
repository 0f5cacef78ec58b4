"""A prediction: how long a step takes and why, what it holds, and what follows from that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit.hardware import Topology
from labkit.predict import fitting
from labkit.predict.costs.memory import Memory
from labkit.predict.describe import CONVENTIONS, Convention, Description
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan
from labkit.predict.ranges import Range


@dataclass(frozen=True)
class Term:
    """One part of the step on the rank that decides how long it is."""

    name: str
    kind: str
    """compute, communication, bubble, optimizer, data or waiting."""
    seconds: float
    formula: str
    source: str


@dataclass(frozen=True, repr=False)
class Prediction:
    """One step of `model` under `plan` on `cluster`."""

    model: Description
    plan: Plan
    cluster: Topology
    terms: tuple[Term, ...]
    stages: tuple[Memory, ...]
    """What a rank of each of the pipeline's stages holds at most."""

    def __repr__(self) -> str:
        """One line, as a notebook shows it; `explain()` has the parts."""
        held, of = (self.memory.total + self.memory.reserved) / 1e9, self.cluster.gpu.memory_gb
        return (
            f"Prediction({self.model.name} on {self.plan.ranks:,} {self.cluster.gpu.name}: {self.step_seconds:.4g} s a "
            f"step, MFU {self.mfu():.1%}, {held:.1f} of {of:g} GB{'' if self.fits else ', does not fit'})"
        )

    @cached_property
    def memory(self) -> Memory:
        """At the stage that needs most."""
        return max(self.stages, key=lambda stage: stage.total)

    @property
    def step_seconds(self) -> float:
        return sum(term.seconds for term in self.terms)

    def seconds(self, kind: str) -> float:
        """Of all terms of one kind, or of the term of that name."""
        return sum(term.seconds for term in self.terms if kind in (term.kind, term.name))

    def breakdown(self) -> dict[str, float]:
        """Seconds by term, those of 0 left out."""
        return {term.name: term.seconds for term in self.terms if term.seconds}

    @property
    def samples_per_second(self) -> float:
        return self.plan.batch / self.step_seconds

    @property
    def tokens_per_second(self) -> float:
        """Of all ranks; images count as one."""
        return self.samples_per_second * self.model.units_per_sample

    @property
    def communication_share(self) -> float:
        """Of the step, exposed."""
        return self.seconds("communication") / self.step_seconds

    def flops(self, convention: Convention = "model") -> float:
        """Of the step, on all ranks."""
        if convention not in CONVENTIONS:
            raise ValueError(f"convention must be one of {', '.join(CONVENTIONS)}, got {convention!r}")
        return self.model.flops(self.plan.batch, convention, self.plan.recompute)

    def tflops_per_gpu(self, convention: Convention = "model") -> float:
        """1e12 FLOPs a second and GPU."""
        return self.flops(convention) / self.step_seconds / self.plan.ranks / 1e12

    def mfu(self, convention: Convention = "model") -> float:
        """Share of the GPUs' data-sheet peak in 16 bits, whatever the precision; with "hardware" it is called HFU."""
        return self.tflops_per_gpu(convention) / self.cluster.gpu.bf16_tflops

    @property
    def fits(self) -> bool:
        return self.memory.total + self.memory.reserved <= self.cluster.gpu.memory_gb * 1e9

    def shortage(self) -> list[str]:
        """Lines: by how much a plan does not fit, its largest term, and the changes that help; none where it fits."""
        return fitting.shortage(self.model, self.plan, self.cluster, self.stages)

    def explain(self) -> str:
        """Each term of time and memory with its formula and source; what to change where it does not fit."""
        lines = [f"{self.step_seconds:.4g} s a step of {self.plan.batch} samples on {self.plan.ranks} GPUs"]
        for term in self.terms:
            if term.seconds:
                lines.append(f"  {term.seconds:10.4g} s  {term.name}: {term.formula}  [{term.source}]")
        lines += self._layer()
        lines += fitting.lines(self.model, self.plan, self.cluster, self.stages)
        lines.append(
            f"MFU {self.mfu():.1%} ({CONVENTIONS['model']}), {self.tflops_per_gpu():.4g} TFLOP/s a GPU, "
            f"HFU {self.mfu('hardware'):.1%}"
        )
        return "\n".join(lines)

    def _layer(self) -> list[str]:
        """What a rank does in a layer: with the seconds of `forward`, the rates that it reaches."""
        plan, model = self.plan, self.model
        if not isinstance(model, Transformer):
            return []
        block = model.block(
            plan.microbatch, tensor=plan.tensor, sequence_parallel=plan.sequence_parallel, context=plan.context,
            flash=plan.flash, fusion=plan.fusion, nbytes=plan.value_bytes,
        )  # fmt: skip
        flops = sum(2 * part.batch * part.m * part.n * part.k for part in block.products)
        attention = f"{block.flash_flops / 1e12:.4g} TFLOP in attention's kernel, " if block.flash_flops else ""
        return [
            f"forward of one layer and microbatch on a rank: {flops / 1e12:.4g} TFLOP in {len(block.products)} "
            f"products (a GPU's peak: {self.cluster.gpu.bf16_tflops:g} TFLOP/s in 16 bits), {attention}"
            f"{block.forward_bytes / 1e9:.4g} GB read and written by passes "
            f"(memory: {self.cluster.gpu.memory_gb_per_s:g} GB/s)"
        ]

    def to_plain(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "model": self.model.name,
            "parameters": self.model.parameters,
            "gpus": self.plan.ranks,
            "gpu": self.cluster.gpu.name,
            "plan": dict(vars(self.plan)),
            "step_seconds": self.step_seconds,
            "terms": [vars(term) for term in self.terms],
            "memory_bytes": self.memory.categories(),
            "fits": self.fits,
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu(),
            "hfu": self.mfu("hardware"),
        }


@dataclass(frozen=True, repr=False)
class PredictionRange:
    """Predictions for every corner of what is unknown."""

    cases: tuple[Prediction, ...]

    def __repr__(self) -> str:
        return f"PredictionRange({len(self.cases)} cases: {self.step_seconds} s a step)"

    def over(self, quantity: Callable[[Prediction], float]) -> Range:
        """From the least to the most of it."""
        values = [quantity(case) for case in self.cases]
        return Range(min(values), max(values))

    @property
    def step_seconds(self) -> Range:
        return self.over(lambda case: case.step_seconds)

    @property
    def tokens_per_second(self) -> Range:
        return self.over(lambda case: case.tokens_per_second)

    @property
    def memory_bytes(self) -> Range:
        return self.over(lambda case: case.memory.total)

    def mfu(self, convention: Convention = "model") -> Range:
        return self.over(lambda case: case.mfu(convention))

    @property
    def fits(self) -> bool | None:
        """None: some cases do and some do not."""
        answers = {case.fits for case in self.cases}
        return answers.pop() if len(answers) == 1 else None
