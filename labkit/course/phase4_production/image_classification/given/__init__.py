"""Given parts of exercise 25: arguments, memory, times, averages, batches, and the command. As `given`:

TrainerBase, Recipe                      # bases of DistributedTrainer and ImageTrainer: their constructors
Choice(strategy, cpu_offload)            # what choose_strategy returns
checkpoint_blocks(model, checkpoint)     # exercise 07's checkpoint around each block
main(trainer, image_trainer, arguments)  # the command
"""

from labkit.course.phase4_production.image_classification.given.arguments import check_memory
from labkit.course.phase4_production.image_classification.given.blocks import checkpoint_blocks
from labkit.course.phase4_production.image_classification.given.program import main
from labkit.course.phase4_production.image_classification.given.recipe import Recipe
from labkit.course.phase4_production.image_classification.given.trainer_base import Choice, StepMetrics, TrainerBase

__all__ = [
    "Choice",
    "Recipe",
    "StepMetrics",
    "TrainerBase",
    "check_memory",
    "checkpoint_blocks",
    "main",
]
