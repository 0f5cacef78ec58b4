"""Solutions that test the rubrics: mutants are wrong and state their marks, variants are right and lose nothing.

`autograder/course/PHASE/EXERCISE/mutants.py` lists the mutants of an exercise, each a right solution with a small edit:

    MUTANTS = {
        "bias_n_times": Mutant(13, loses=BLOCK | {"rows"}, base="megatron").edited(\"\"\"
            Each rank's product has the bias in it, so the sum has it N times.

            - out = reduce_from_group(F.linear(x, self.weight), self.group)
            + out = reduce_from_group(F.linear(x, self.weight, self.bias), self.group)
        \"\"\"),
        "does_nothing": Mutant(0, loses=EVERYTHING),
    }

`base` is a variant; by default the solution is edited. See edits.py for the format. A mutant without edits is a whole
module, `mutants/does_nothing.py`; its first line describes it.

`variants.py` beside it lists the variants most of whose lines are those of the solution, or of another variant:

    VARIANTS = {
        "isend": Variant(base="batch_isend_irecv").edited(\"\"\"
            Right: posts the send, receives with a blocking call, then waits for the send.
            ...
        \"\"\"),
    }

Other variants are whole modules, `variants/batch_isend_irecv.py`, and in no list.

`labkit judge-mutants` judges them, `labkit mutants` and `labkit variants` show them. Grading does not use them.
"""

from autograder.mutants.edits import Edit, WrongEdit, edited
from autograder.mutants.table import Mutant, Mutants, UnknownName, Variant, Variants

__all__ = ["Edit", "Mutant", "Mutants", "UnknownName", "Variant", "Variants", "WrongEdit", "edited"]
