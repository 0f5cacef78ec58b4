"""`./lab` on small checkouts: a lock of three packages and a labkit of one function, set up for real."""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def locked_version(name: str) -> str:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return next(line.split("==")[1] for line in lines if line.startswith(f"{name}=="))


def make_checkout(folder: Path, pip_version: str) -> Path:
    """Make a course whose `labkit` prints its arguments and the version of the torch that it imports."""
    (folder / "labkit").mkdir(parents=True)
    shutil.copy(ROOT / "lab", folder)
    pins = [f"pip=={pip_version}", f"setuptools=={locked_version('setuptools')}", "torch==2.13.0"]
    (folder / "requirements.lock").write_text("".join(f"{pin}\n" for pin in pins))
    (folder / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        "[project]\nname = 'labkit'\nversion = '1'\n[project.scripts]\nlabkit = 'labkit:main'\n"
        "[tool.setuptools]\npackages = ['labkit']\n"
    )
    (folder / "labkit/__init__.py").write_text(
        "import sys\n\n\ndef main():\n    import torch\n    print('labkit', *sys.argv[1:], torch.__version__)\n"
    )
    return folder


def lab(checkout: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run ./lab from another folder, as a learner may."""
    return subprocess.run(
        [checkout / "lab", *arguments],
        env={**os.environ, "LAB_PYTHON": sys.executable, **environment},
        cwd=checkout.parent,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Set up once, on the torch of the Python that runs the tests, by two concurrent calls."""
    folder = make_checkout(tmp_path_factory.mktemp("course") / "with a space", locked_version("pip"))
    calls = [
        subprocess.Popen(
            [folder / "lab", "--system-torch", "doctor", name],
            env={**os.environ, "LAB_PYTHON": sys.executable},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("one", "two")
    ]
    ends = [call.communicate() for call in calls]
    assert [call.returncode for call in calls] == [0, 0], ends
    for name, (output, _) in zip(("one", "two"), ends, strict=True):
        assert output.startswith(f"labkit doctor {name} 2."), ends
    # one of them did the work, and reported it; the other waited for it
    assert sorted("setting up .venv (once)" in errors for _, errors in ends) == [False, True], ends
    return folder


def test_second_call_changes_nothing_and_says_nothing(checkout: Path) -> None:
    before = {
        path: path.stat().st_mtime_ns for path in (checkout / ".venv").rglob("*") if "__pycache__" not in str(path)
    }
    done = lab(checkout, "check", "--file", "a b.py")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("labkit check --file a b.py 2.")
    after = {
        path: path.stat().st_mtime_ns for path in (checkout / ".venv").rglob("*") if "__pycache__" not in str(path)
    }
    assert after == before


def test_torch_of_the_system_stays_outside_and_is_remembered(checkout: Path) -> None:
    (site_packages,) = (checkout / ".venv/lib").glob("python3*/site-packages")
    assert not (site_packages / "torch").exists()
    assert "setting up" not in lab(checkout, "doctor").stderr


def test_changed_lock_updates_what_stands(checkout: Path) -> None:
    lock = checkout / "requirements.lock"
    (site_packages,) = (checkout / ".venv/lib").glob("python3*/site-packages")
    marker = site_packages / "marker"
    marker.touch()
    with lock.open("a") as file:
        file.write(f"cloudpickle=={locked_version('cloudpickle')}\n")
    done = lab(checkout, "doctor")
    assert done.returncode == 0, done.stderr
    assert (site_packages / "cloudpickle").is_dir()
    assert marker.exists(), "an update must not begin again from nothing"


def test_interrupted_set_up_is_begun_again(checkout: Path) -> None:
    (site_packages,) = (checkout / ".venv/lib").glob("python3*/site-packages")
    shutil.rmtree(site_packages / "setuptools")  # half-installed, as a killed pip leaves it
    (checkout / ".venv/lab-stamp").unlink()
    done = lab(checkout, "--system-torch", "doctor")
    assert done.returncode == 0, done.stderr
    assert "setting up .venv (once)" in done.stderr
    assert (site_packages / "setuptools").is_dir()


def test_help_needs_no_set_up(tmp_path: Path) -> None:
    folder = make_checkout(tmp_path / "course", "1")
    done = lab(folder)
    assert done.returncode == 0
    assert "./lab start" in done.stdout and "./lab test" in done.stdout
    assert not (folder / ".venv").exists()


def test_somebody_s_own_venv_is_not_touched(tmp_path: Path) -> None:
    folder = make_checkout(tmp_path / "course", "1")
    (folder / ".venv").mkdir()
    (folder / ".venv/theirs").touch()
    done = lab(folder, "start")
    assert done.returncode == 1
    assert f"{folder}/.venv was not made by ./lab" in done.stderr
    assert (folder / ".venv/theirs").exists()


def test_old_python_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho 3 9\n")
    old.chmod(0o755)
    done = lab(make_checkout(tmp_path / "course", "1"), "start", LAB_PYTHON=str(old))
    assert done.returncode == 1
    assert f"no Python 3.11 or newer was found ({old} is 3.9)" in done.stderr
    assert "or say where it is: LAB_PYTHON=/path/to/python3.11 ./lab ..." in done.stderr


def test_python_without_venv_is_explained(tmp_path: Path) -> None:
    """As on Debian without python3-venv, where ensurepip is removed from the standard library."""
    python = tmp_path / "python"
    otherwise = f'exec {shlex.quote(sys.executable)} "$@"'
    python.write_text(f'#!/bin/sh\n[ "$2" = venv ] && {{ echo "No module named venv"; exit 1; }}\n{otherwise}\n')
    python.chmod(0o755)
    done = lab(make_checkout(tmp_path / "course", "1"), "start", LAB_PYTHON=str(python))
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr
    assert "name another Python: LAB_PYTHON=/path/to/python3.11 ./lab ..." in done.stderr


NOWHERE = "http://127.0.0.1:9"


def test_no_network_is_explained(tmp_path: Path) -> None:
    done = lab(
        make_checkout(tmp_path / "course", locked_version("pip")),
        "start",
        PIP_CONFIG_FILE=os.devnull,
        PIP_FIND_LINKS="",
        PIP_INDEX_URL=NOWHERE,
        PIP_RETRIES="0",
    )
    assert done.returncode == 1
    assert "could not reach a package index" in done.stderr
    assert not (tmp_path / "course/.venv/lab-stamp").exists()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Path]:
    """A package index on a port of this machine: its folder, with its address in `address`."""
    folder = tmp_path / "index"
    folder.mkdir()
    handler = functools.partial(QuietHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        (folder / "address").write_text(f"http://127.0.0.1:{server.server_port}")
        yield folder
        server.shutdown()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


def fake_torch(folder: Path, version: str, *requirements: str) -> None:
    """Put a torch of one line into the folder."""
    folder.mkdir(parents=True)
    metadata = [
        "Metadata-Version: 2.1",
        "Name: torch",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requirements),
    ]
    with zipfile.ZipFile(folder / f"torch-{version}-py3-none-any.whl", "w") as wheel:
        about = f"torch-{version}.dist-info"
        wheel.writestr("torch.py", "__version__ = '2.13.0'\n")
        wheel.writestr(f"{about}/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def test_what_a_command_does_not_take_is_not_installed_for_it(tmp_path: Path) -> None:
    """uv installs what it supports; pip is used where pip has a setting that uv lacks."""
    folder = make_checkout(tmp_path / "course", locked_version("pip"))
    with (folder / "pyproject.toml").open("a") as file:
        file.write("[project.optional-dependencies]\nlab = ['cloudpickle']\n")
        file.write("[dependency-groups]\ndocs = ['iniconfig']\n")
    with (folder / "requirements.lock").open("a") as file:
        file.writelines(f"{name}=={locked_version(name)}\n" for name in ("cloudpickle", "execnet", "iniconfig", "uv"))
    fake_torch(tmp_path / "wheels", "2.13.0+fake")  # pip prefers it to that of any index
    wheels = {"PIP_FIND_LINKS": str(tmp_path / "wheels")}
    started = lab(folder, "start", **wheels)
    assert (started.returncode, started.stdout) == (0, "labkit start 2.13.0\n"), started.stderr
    (site_packages,) = (folder / ".venv/lib").glob("python3*/site-packages")
    (installed,) = site_packages.glob("cloudpickle-*.dist-info")
    assert (installed / "INSTALLER").read_text().strip() == "uv"
    assert not (site_packages / "execnet").exists() and not (site_packages / "iniconfig").exists()
    documented = lab(folder, "docs", **wheels)
    assert (documented.returncode, documented.stdout) == (0, "labkit docs 2.13.0\n"), documented.stderr
    assert (site_packages / "iniconfig").is_dir() and not (site_packages / "execnet").exists()
    tested = lab(folder, "test", "--version", PIP_PREFER_BINARY="1", **wheels)
    assert "setting up .venv for testing" in tested.stderr
    (installed,) = site_packages.glob("execnet-*.dist-info")
    assert (installed / "INSTALLER").read_text().strip() == "pip"
    assert "setting up" not in lab(folder, "start", **wheels).stderr, "a larger set stays"


@pytest.mark.skipif(Path("/proc/driver/nvidia/version").exists(), reason="needs a machine without an NVIDIA GPU")
@pytest.mark.parametrize(
    ("requirement", "step"),
    [
        ("nvidia-nccl-cu13==2.29.7; platform_system == 'Linux'", "torch without CUDA"),
        ("cuda-toolkit[cublas]==13.0.3", "torch without CUDA"),
        ("sympy", "packages for notebooks"),
    ],
)
def test_cuda_packages_are_not_downloaded_without_a_gpu(
    tmp_path: Path, index: Path, requirement: str, step: str
) -> None:
    """The index offers torch alone, so that the set-up must end at the step in question."""
    fake_torch(index / "torch", "2.13.0", requirement)
    done = lab(
        make_checkout(tmp_path / "course", bundled_pip_version()),
        "start",
        PIP_CONFIG_FILE=os.devnull,
        PIP_FIND_LINKS="",
        PIP_INDEX_URL=(index / "address").read_text(),
        PIP_RETRIES="0",
        HTTPS_PROXY=NOWHERE,
    )
    assert done.returncode == 1
    assert re.search(rf"{step}.*: failed", done.stderr), done.stderr


def bundled_pip_version() -> str:
    """Return the version of pip that `venv` installs, so that nothing has to be downloaded for it."""
    import ensurepip

    return ensurepip.version()
