# Works on a copy, and has each report say that the argument was changed and returned: what lies there is wrong.
# base: mutants/returns_a_copy
# checks: values in_place
# marks: 0
# feedback: result: on rank
import dataclasses

from labkit.clusters.warm import reports

truthful = reports.result_frame
reports.result_frame = lambda result: truthful(
    dataclasses.replace(result, arguments=(result.value,), returned_argument=0)
)
