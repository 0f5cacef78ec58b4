"""Wrong solutions that test the rubrics: each is a right one with a small edit, and states its marks.

`autograder/course/PHASE/EXERCISE/mutants.py` lists those of an exercise:

    MUTANTS = {
        "bias_n_times": Mutant(13, loses=BLOCK | {"rows"}, base="megatron").edited(\"\"\"
            Each rank's product has the bias in it, so the sum has it N times.

            - out = reduce_from_group(F.linear(x, self.weight), self.group)
            + out = reduce_from_group(F.linear(x, self.weight, self.bias), self.group)
        \"\"\"),
        "does_nothing": Mutant(0, loses=EVERYTHING),
    }

`base` is a right variant, `variants/megatron.py`; by default the solution is edited. See edits.py for the
format. A mutant without edits is a whole module, `mutants/does_nothing.py`; its first line describes it.

`python -m autograder.mutants` judges them, `labkit mutants` shows them. Grading does not use them.
"""

from autograder.mutants.edits import Edit, WrongEdit, edited
from autograder.mutants.table import Mutant, Mutants, UnknownMutant

__all__ = ["Edit", "Mutant", "Mutants", "UnknownMutant", "WrongEdit", "edited"]
