"""Given parts of exercise 26: plans, the text that is read, 16-bit training, and what a training reports. As `given`:

check_plan(model, cluster, batch, tokens)            # the arguments of `plan`; returns the batch
as_trained(layout)                       # the layout as the trainer of exercise 17 runs it, or None
TrainingPlan, Forecast                   # what `plan` returns; `plan.layout` is a `labkit.predict.Plan`
MasterAdamW                              # AdamW with a float32 copy of 16-bit weights
Recomputed(block, checkpoint)            # a block whose activations are computed again
tokens_of_step(plan, step)               # the global batch of a step, the same on all ranks
Report                                   # what `train` returns
held_out_loss(model, windows), trigram_loss(windows)
main(llm_13b, arguments)                 # the command; llm_13b: this module
"""

from labkit.course.phase4_production.checkpointing.given.manifest import checkpoint_folders
from labkit.course.phase4_production.llm_13b.given.mesh_checkpoints import MeshCheckpoints, exchange
from labkit.course.phase4_production.llm_13b.given.optimizer import MasterAdamW
from labkit.course.phase4_production.llm_13b.given.plans import (
    FAILURE_SECONDS,
    RESTART_SECONDS,
    Forecast,
    TrainingPlan,
    as_trained,
    check_plan,
    with_layers,
)
from labkit.course.phase4_production.llm_13b.given.program import main
from labkit.course.phase4_production.llm_13b.given.recomputed import Recomputed
from labkit.course.phase4_production.llm_13b.given.report import Report, whole_model
from labkit.course.phase4_production.llm_13b.given.slices import (
    Extended,
    Slice,
    extended,
    extended_bytes,
    measured,
    slices,
)
from labkit.course.phase4_production.llm_13b.given.text import held_out_loss, tokens_of_step, trigram_loss, windows

__all__ = [
    "FAILURE_SECONDS",
    "RESTART_SECONDS",
    "Extended",
    "Forecast",
    "MasterAdamW",
    "MeshCheckpoints",
    "Recomputed",
    "Report",
    "Slice",
    "TrainingPlan",
    "as_trained",
    "check_plan",
    "checkpoint_folders",
    "exchange",
    "extended",
    "extended_bytes",
    "held_out_loss",
    "main",
    "measured",
    "slices",
    "tokens_of_step",
    "trigram_loss",
    "whole_model",
    "windows",
    "with_layers",
]
