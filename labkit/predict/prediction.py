"""A prediction: time and memory of a step, term by term, and quantities derived from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from labkit.hardware import Topology
from labkit.predict import fitting
from labkit.predict.costs.memory import Memory
from labkit.predict.costs.placing import mean_tflops, memory_gb, names
from labkit.predict.describe import CONVENTIONS, Convention, Description
from labkit.predict.describe.transformer import Transformer
from labkit.predict.plan import Plan
from labkit.predict.ranges import Range
from labkit.predict.spread import COVERAGE, step_range
from labkit.predict.term import Term


@dataclass(frozen=True, repr=False)
class Prediction:
    """One step of `model` under `plan` on `cluster`."""

    model: Description
    plan: Plan
    cluster: Topology
    terms: tuple[Term, ...]
    stages: tuple[Memory, ...]
    """Peak memory of a rank, for each pipeline stage."""

    def __repr__(self) -> str:
        """One line, as a notebook shows it; `explain()` has the parts."""
        held, of = (self.memory.total + self.memory.reserved) / 1e9, self.memory_gb
        return (
            f"Prediction({self.model.name} on {self.plan.ranks:,} {names(self.cluster)}: {self.step_seconds:.4g} s a "
            f"step, MFU {self.mfu():.1%}, {held:.1f} of {of:g} GB{'' if self.fits else ', does not fit'})"
        )

    @cached_property
    def memory(self) -> Memory:
        """Memory of the fullest stage: the one with the least left on its GPUs."""
        return fitting.fullest(self.plan, self.cluster, self.stages)

    @property
    def memory_gb(self) -> float:
        """Memory of a GPU of the fullest stage, in 1e9 bytes; of several kinds the smallest."""
        return memory_gb(self.plan, self.cluster, self.memory.stage)

    @property
    def step_seconds(self) -> float:
        return sum(term.seconds for term in self.terms)

    @property
    def step_range(self) -> Range:
        """Seconds between which nine of ten measured steps lie; `labkit.predict.spread` has the range of each part."""
        return step_range(self.terms, self.plan, self.cluster)

    def seconds(self, kind: str) -> float:
        """Seconds of all terms of one kind, or of the term with that name."""
        return sum(term.seconds for term in self.terms if kind in (term.kind, term.name))

    def breakdown(self) -> dict[str, float]:
        """Seconds by term, without those that are 0."""
        return {term.name: term.seconds for term in self.terms if term.seconds}

    @property
    def samples_per_second(self) -> float:
        return self.plan.batch / self.step_seconds

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all ranks; an image counts as one."""
        return self.samples_per_second * self.model.units_per_sample

    @property
    def communication_share(self) -> float:
        """Share of the step that is exposed communication."""
        return self.seconds("communication") / self.step_seconds

    def flops(self, convention: Convention = "model") -> float:
        """FLOPs of the step on all ranks."""
        if convention not in CONVENTIONS:
            raise ValueError(f"convention must be one of {', '.join(CONVENTIONS)}, got {convention!r}")
        once = self.model.flops(self.plan.batch, convention, "none")
        again = self.model.flops(self.plan.batch, convention, self.plan.recompute) - once
        return once + self.plan.recomputed_layers * again

    def tflops_per_gpu(self, convention: Convention = "model") -> float:
        """1e12 FLOPs per second and GPU."""
        return self.flops(convention) / self.step_seconds / self.plan.ranks / 1e12

    def mfu(self, convention: Convention = "model") -> float:
        """Share of the GPUs' 16-bit data-sheet peak, for any precision; with "hardware" it is called HFU."""
        return self.tflops_per_gpu(convention) / mean_tflops(self.cluster)

    @property
    def utilization(self) -> str:
        """MFU and HFU in words, for causal models also as PaLM and Megatron count."""
        words = f"MFU {self.mfu():.1%}, HFU {self.mfu('hardware'):.1%}"
        if self.mfu("palm") > self.mfu():
            words += f"; with masked pairs, as PaLM counts, {self.mfu('palm'):.1%}, {self.mfu('megatron'):.1%}"
        return words

    @property
    def device_bytes(self) -> Range:
        """Bytes used on the GPU, up to what torch's allocator may keep between its blocks."""
        return self.memory.measured("device")

    @property
    def fits(self) -> bool:
        """Whether the plan fits if torch's allocator leaves no gaps."""
        return self.memory.total + self.memory.reserved <= self.memory_gb * 1e9

    @property
    def surely_fits(self) -> bool:
        """Whether the plan fits whatever torch's allocator keeps."""
        return all(
            stage.measured("device").high <= memory_gb(self.plan, self.cluster, stage.stage) * 1e9
            for stage in (self.stages if self.cluster.gpus else [self.memory])
        )

    def shortage(self) -> list[str]:
        """Lines: how much memory is missing, the largest term, and the changes that help; empty for a plan that
        fits."""
        return fitting.shortage(self.model, self.plan, self.cluster, self.stages)

    def explain(self) -> str:
        """Each term of time and memory with its formula and source, and what to change if the plan does not fit."""
        lines = [f"{self.step_seconds:.4g} s a step of {self.plan.batch} samples on {self.plan.ranks} GPUs"]
        for term in self.terms:
            if term.seconds:
                lines.append(f"  {term.seconds:10.4g} s  {term.name}: {term.formula}  [{term.source}]")
        lines.append(f"{COVERAGE:.0%} of measured steps take {self.step_range} s")
        lines += self._layer()
        lines += fitting.lines(self.model, self.plan, self.cluster, self.stages)
        lines.append(self.utilization)
        lines.append(f"{self.tflops_per_gpu():.4g} TFLOP/s a GPU: {CONVENTIONS['model']}")
        return "\n".join(lines)

    def _layer(self) -> list[str]:
        """Lines about a rank's work in a layer; dividing it by the seconds of `forward` gives the rates reached."""
        plan, model, gpus = self.plan, self.model, self.cluster.kinds
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
            f"products (a GPU's peak: {' or '.join(f'{gpu.bf16_tflops:g}' for gpu in gpus)} TFLOP/s in 16 bits), "
            f"{attention}"
            f"{block.forward_bytes / 1e9:.4g} GB read and written by passes "
            f"(memory: {' or '.join(f'{gpu.memory_gb_per_s:g}' for gpu in gpus)} GB/s)"
        ]

    def to_plain(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "model": self.model.name,
            "parameters": self.model.parameters,
            "gpus": self.plan.ranks,
            "gpu": names(self.cluster),
            "plan": dict(vars(self.plan)),
            "step_seconds": self.step_seconds,
            "step_seconds_range": [self.step_range.low, self.step_range.high],
            "terms": [vars(term) for term in self.terms],
            "memory_bytes": self.memory.categories(),
            "fits": self.fits,
            "samples_per_second": self.samples_per_second,
            "tokens_per_second": self.tokens_per_second,
            "mfu": self.mfu(),
            "hfu": self.mfu("hardware"),
            "mfu_palm": self.mfu("palm"),
            "hfu_megatron": self.mfu("megatron"),
        }


@dataclass(frozen=True, repr=False)
class PredictionRange:
    """Predictions for every combination of the unknown inputs."""

    cases: tuple[Prediction, ...]

    def __repr__(self) -> str:
        return f"PredictionRange({len(self.cases)} cases: {self.step_seconds} s a step)"

    def over(self, quantity: Callable[[Prediction], float]) -> Range:
        """Range of `quantity` over all predictions."""
        values = [quantity(case) for case in self.cases]
        return Range(min(values), max(values))

    @property
    def step_seconds(self) -> Range:
        return self.over(lambda case: case.step_seconds)

    @property
    def step_range(self) -> Range:
        """Seconds between which nine of ten measured steps lie, whatever the unknown inputs are."""
        ranges = [case.step_range for case in self.cases]
        return Range(min(each.low for each in ranges), max(each.high for each in ranges))

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
        """Whether the plan fits; None: in some cases only."""
        answers = {case.fits for case in self.cases}
        return answers.pop() if len(answers) == 1 else None
