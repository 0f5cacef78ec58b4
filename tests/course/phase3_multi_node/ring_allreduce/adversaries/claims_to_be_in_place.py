# Works on a copy, and makes each report claim that the argument was changed and returned: its contents are wrong.
# base: mutants/returns_a_copy
# checks: values in_place
# marks: 0
# feedback: result: on rank
import dataclasses

from labkit.clusters.forkserver import reports

truthful = reports.result_frame
reports.result_frame = lambda result: truthful(
    dataclasses.replace(result, arguments=(result.value,), returned_argument=0)
)
