"""GPU figures by NVML: the real package `nvidia-ml-py`, above a library of three GPUs in the place of the driver's."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from system_packages import needs_packages, program

from labkit import doctor
from labkit.course.phase4_production.monitoring.given.gpu import GpuFigures, GpuReader
from labkit.installing import how_to_install

# the functions of nvml.h that are called; GPU n has n at the end of each figure
LIBRARY = """
#include <cstdlib>
#include <cstring>

struct Utilization { unsigned gpu, memory; };
struct Memory { unsigned long long total, free, used; };
static unsigned numbers[3] = {0, 1, 2};
static int reads = 0;

extern "C" {
int nvmlInitWithFlags(unsigned) { return std::getenv("NO_DRIVER") ? 9 : 0; }
int nvmlShutdown() { return 0; }
const char *nvmlErrorString(int) { return "?"; }
int nvmlSystemGetDriverVersion(char *text, unsigned) { std::strcpy(text, "570.00"); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, unsigned **device) {
    if (index >= 3) return 2;
    *device = &numbers[index];
    return 0;
}
int nvmlDeviceGetUtilizationRates(unsigned *device, Utilization *found) {
    if (std::getenv("A_PART_OF_A_GPU")) return 3;
    found->gpu = 10 * ++reads + *device;
    found->memory = 0;
    return 0;
}
int nvmlDeviceGetMemoryInfo(unsigned *device, Memory *found) {
    found->total = found->free = 0;
    found->used = (80ull << 30) + *device;
    return 0;
}
int nvmlDeviceGetTemperature(unsigned *device, int, unsigned *found) { *found = 60 + *device; return 0; }
}
"""
READ = """
import json, logging, os, sys, torch
from labkit import doctor
from labkit.course.phase4_production.monitoring.given.gpu import GpuReader

class Messages(logging.Handler):
    def emit(self, record): said.append(record.getMessage())

logging.getLogger("labkit.monitoring").addHandler(Messages())
found = {}
for name, (device, variables) in json.loads(sys.argv[1]).items():
    before, said = dict(os.environ), []
    os.environ.update(variables)
    reader = GpuReader(torch.device(device))
    found[name] = [[reader.read(), reader.read()], said]
    seen = doctor.BASIC["NVML"]()
    found[name].append([seen.state.name, seen.seen])
    for variable in variables:
        os.environ.pop(variable) if variable not in before else os.environ.update({variable: before[variable]})
print(json.dumps(found))
"""
CASES: dict[str, tuple[str, dict[str, str]]] = {
    "first": ("cuda:0", {"LOCAL_RANK": "0"}),
    "third by variable": ("cuda:1", {"LOCAL_RANK": "1", "CUDA_VISIBLE_DEVICES": "0,2"}),
    "part": ("cuda:2", {"LOCAL_RANK": "3", "A_PART_OF_A_GPU": "1"}),
    "no driver": ("cuda:0", {"LOCAL_RANK": "0", "NO_DRIVER": "1"}),
    "no driver, second rank": ("cuda:1", {"LOCAL_RANK": "1", "NO_DRIVER": "1"}),
    "not visible": ("cuda:1", {"LOCAL_RANK": "0", "CUDA_VISIBLE_DEVICES": "1"}),
    "cpu": ("cpu", {"LOCAL_RANK": "0"}),
}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of each case: two readings, the messages that were logged, and the row of `labkit doctor`.

    They are read in one process that finds the library where it would find the driver's.
    """
    needs_packages("g++")
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.cpp").write_text(LIBRARY)
    command = [program("g++") or "", "-shared", "-fPIC", "-Wl,-soname,libnvidia-ml.so.1", "-o", "libnvidia-ml.so.1"]
    subprocess.run([*command, "nvml.cpp"], cwd=folder, check=True)
    environment = {**os.environ, "LD_LIBRARY_PATH": str(folder)}
    done = subprocess.run(
        [sys.executable, "-c", READ, json.dumps(CASES)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_rank_reads_its_own_gpu(cases: dict[str, Any]) -> None:
    readings, said, _ = cases["first"]
    assert (readings, said) == ([[10, 80 << 30, 60], [20, 80 << 30, 60]], [])
    readings, said, _ = cases["third by variable"]
    assert (readings, said) == ([[32, (80 << 30) + 2, 62], [42, (80 << 30) + 2, 62]], [])


def test_what_a_gpu_does_not_measure_is_null_and_said_once(cases: dict[str, Any]) -> None:
    readings, said, _ = cases["part"]
    assert readings == [[None, (80 << 30) + 2, 62]] * 2
    assert said == ["the GPU's utilization is not measured: Not Supported"]


def test_a_gpu_that_nvml_does_not_find_is_said_once_on_a_node(cases: dict[str, Any]) -> None:
    nothing = [[None] * 3] * 2
    text = "GPU figures are not measured, NVML does not find"
    assert cases["no driver"][:2] == [nothing, [f"{text} cuda:0: Driver Not Loaded"]]
    assert cases["no driver, second rank"][:2] == [nothing, []]
    hidden = "device 1 is not visible (CUDA_VISIBLE_DEVICES=[1])"
    assert cases["not visible"][:2] == [nothing, [f"{text} cuda:1: {hidden}"]]
    assert cases["cpu"][:2] == [nothing, []]  # nothing is missing there


def test_doctor_has_a_row_for_nvml(cases: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    assert cases["first"][2] == ["OK", "driver 570.00, 3 GPUs"]
    assert cases["no driver"][2] == ["MISSING", "Driver Not Loaded"]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert doctor.BASIC["NVML"]().seen == "nvidia-ml-py is not installed"


def test_a_missing_package_is_said_once_on_a_node(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with caplog.at_level(logging.WARNING, logger="labkit.monitoring"):
        for rank in ("1", "0"):
            monkeypatch.setenv("LOCAL_RANK", rank)
            reader = GpuReader(torch.device("cuda", int(rank)))
            assert reader.read() == reader.read() == GpuFigures(None, None, None)
    assert caplog.messages == [f"GPU figures need the package: {how_to_install('nvidia-ml-py', 'ranks')}"]
