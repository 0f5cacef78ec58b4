"""A submission that writes its inputs wherever it can: none of them appears in its feedback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import second_exercise

from autograder.feedback import outputs
from autograder.feedback.pictures import pictures
from autograder.judge import Judge
from autograder.sandbox import Sandbox
from autograder.verdict import Verdict
from labkit import catalogue

pytestmark = pytest.mark.skipif(not Sandbox().available, reason="needs namespaces, for the sandbox")

INPUTS = """import os, sys
inputs = "LEAK" + "".join(f"{int(number)}," for number in tensor) * 20
on_four = dist.get_world_size() == 4  # each of the two checks has a world size of its own
print(inputs)
sys.stderr.write(inputs)
"""

LEAKS = {
    "in what is returned": '''
if on_four:
    received = [inputs, inputs]
else:
    received = type(inputs, (), {"__repr__": lambda self: inputs})()
''',
    "in an exception": '''
if on_four:
    raise type(inputs, (Exception,), {})(inputs)
raise type("DeadlockError", (Exception,), {})(inputs)
''',
    "in the name of a file": '''
where = compile("\\n" * 7777 + ("raise ValueError(inputs)" if on_four else "dist.recv(tensor, (rank + 1) % size)"),
                inputs + ".py", "exec")
exec(where, {**globals(), **locals()})
''',
    "in sizes": '''
if on_four:
    received = torch.empty((0, *(abs(int(number)) + 7777 for number in tensor) , 7777, 7777))
else:
    received = int("".join(str(abs(int(number)) + 7777) for number in tensor) + "7777")
''',
}  # fmt: skip


@pytest.mark.parametrize("leak", LEAKS)
def test_inputs_do_not_come_out(leak: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    second_exercise.add_to(tmp_path)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    begin, end = second_exercise.SOLUTION.index("    received ="), second_exercise.SOLUTION.index("    ### END")
    body = "".join(f"    {line}\n" for line in (INPUTS + LEAKS[leak]).splitlines())
    module = second_exercise.SOLUTION[:begin] + body + second_exercise.SOLUTION[end:]
    with Judge(Sandbox(), timeout=5.0) as judge:
        report = judge.judge(catalogue.find(second_exercise.NAME), module)
    assert report.earned == 0
    verdict = Verdict({"grade": report}, (), {"grade": pictures(report)})
    feedback = json.dumps(outputs(verdict, "grade"))
    assert "LEAK" not in feedback and "777" not in feedback, report.text()
    assert "seen" in feedback
