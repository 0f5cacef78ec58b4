"""`./lab` on small checkouts: lists of a few packages and a labkit of one function, set up for real."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterable, Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from requirement_lists import locked_entry

ROOT = Path(__file__).resolve().parent.parent


BEGINS_WITH = {
    "tools": "", "uv": "tools", "ranks": "", "learning": "ranks", "grading": "learning", "documenting": "grading",
    "hub": "grading", "testing": "documenting",
}  # fmt: skip


def make_checkout(folder: Path, *tools: str) -> Path:
    """Make a course whose `labkit` prints its arguments and the version of the torch that it imports.

    tools: entries of pip, and of setuptools where labkit is installed; those of the lab's own list if there is none.
    """
    (folder / "labkit").mkdir(parents=True)
    shutil.copy(ROOT / "lab", folder)
    (folder / "requirements").mkdir()
    for name, other in BEGINS_WITH.items():
        (folder / f"requirements/{name}.txt").write_text(f"-r {other}.txt\n" if other else "# a list\n")
    add_to(folder, "tools", *(tools or map(locked_entry, ("pip", "setuptools"))))
    (folder / "requirements/torch.txt").write_text("torch==2.13.0\n")
    (folder / "pyproject.toml").write_text(
        "[build-system]\nrequires = ['setuptools']\nbuild-backend = 'setuptools.build_meta'\n"
        "[project]\nname = 'labkit'\nversion = '1'\n[project.scripts]\nlabkit = 'labkit:main'\n"
        "[tool.setuptools]\npackages = ['labkit']\n"
    )
    (folder / "labkit/__init__.py").write_text(
        "import sys\n\n\ndef main():\n    import torch\n    print('labkit', *sys.argv[1:], torch.__version__)\n"
    )
    return folder


def add_to(checkout: Path, name: str, *lines: str) -> None:
    with (checkout / f"requirements/{name}.txt").open("a") as file:
        file.writelines(f"{line}\n" for line in lines)


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
    folder = make_checkout(tmp_path_factory.mktemp("course") / "with a space")
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


def test_a_changed_list_updates_what_stands(checkout: Path) -> None:
    (site_packages,) = (checkout / ".venv/lib").glob("python3*/site-packages")
    marker = site_packages / "marker"
    marker.touch()
    add_to(checkout, "learning", locked_entry("cloudpickle"))
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
    folder = make_checkout(tmp_path / "course")
    done = lab(folder)
    assert done.returncode == 0
    assert "./lab start" in done.stdout and "./lab test" in done.stdout
    assert not (folder / ".venv").exists()


def test_somebody_s_own_venv_is_not_touched(tmp_path: Path) -> None:
    folder = make_checkout(tmp_path / "course")
    (folder / ".venv").mkdir()
    (folder / ".venv/theirs").touch()
    done = lab(folder, "start")
    assert done.returncode == 1
    assert f"{folder}/.venv was not made by ./lab" in done.stderr
    assert (folder / ".venv/theirs").exists()


def test_a_link_to_another_folder_s_venv_is_not_followed(tmp_path: Path) -> None:
    theirs = make_checkout(tmp_path / "theirs")
    (theirs / ".venv").mkdir()
    (theirs / ".venv/lab-stamp").write_text("another folder's\n\ntesting\n")
    folder = make_checkout(tmp_path / "course")
    (folder / ".venv").symlink_to(theirs / ".venv")
    done = lab(folder, "start")
    assert done.returncode == 1
    assert f"{folder}/.venv is a link to the environment of another folder" in done.stderr
    assert (theirs / ".venv/lab-stamp").exists()


def test_old_python_is_named(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho 3 9\n")
    old.chmod(0o755)
    done = lab(make_checkout(tmp_path / "course"), "start", LAB_PYTHON=str(old))
    assert done.returncode == 1
    assert f"no Python 3.11 or newer was found ({old} is 3.9)" in done.stderr
    assert "or say where it is: LAB_PYTHON=/path/to/python3.11 ./lab ..." in done.stderr


def test_python_without_venv_is_explained(tmp_path: Path) -> None:
    """As on Debian without python3-venv, where ensurepip is removed from the standard library."""
    python = tmp_path / "python"
    otherwise = f'exec {shlex.quote(sys.executable)} "$@"'
    python.write_text(f'#!/bin/sh\n[ "$2" = venv ] && {{ echo "No module named venv"; exit 1; }}\n{otherwise}\n')
    python.chmod(0o755)
    done = lab(make_checkout(tmp_path / "course"), "start", LAB_PYTHON=str(python))
    assert done.returncode == 1
    assert "apt install python3-venv" in done.stderr
    assert "name another Python: LAB_PYTHON=/path/to/python3.11 ./lab ..." in done.stderr


NOWHERE = "http://127.0.0.1:9"


def test_no_network_is_explained(tmp_path: Path) -> None:
    done = lab(
        make_checkout(tmp_path / "course"),
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


def fake_wheel(folder: Path, name: str, version: str, content: str, requirements: Iterable[str] = ()) -> Path:
    """Put a package of one module into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {each}" for each in requirements]
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        about = f"{name}-{version}.dist-info"
        wheel.writestr(f"{name}.py", content)
        wheel.writestr(f"{about}/METADATA", "\n".join(metadata) + "\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return path


def fake_torch(folder: Path, version: str, *requirements: str) -> None:
    fake_wheel(folder, "torch", version, "__version__ = '2.13.0'\n", requirements)


def test_what_a_command_does_not_take_is_not_installed_for_it(tmp_path: Path) -> None:
    """uv installs what it supports; pip is used where pip has a setting that uv lacks."""
    folder = make_checkout(tmp_path / "course")
    packages = {"learning": "cloudpickle", "documenting": "iniconfig", "testing": "execnet", "uv": "uv"}
    for name, package in packages.items():
        add_to(folder, name, locked_entry(package))
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
    checkout = make_checkout(tmp_path / "course", bundled_pip())
    add_to(checkout, "learning", f"absent==1 --hash=sha256:{'0' * 64}")
    done = lab(
        checkout,
        "start",
        PIP_CONFIG_FILE=os.devnull,
        PIP_FIND_LINKS="",
        PIP_INDEX_URL=(index / "address").read_text(),
        PIP_RETRIES="0",
        HTTPS_PROXY=NOWHERE,
    )
    assert done.returncode == 1
    assert re.search(rf"{step}.*: failed", done.stderr), done.stderr


def bundled_pip() -> str:
    """Return an entry for the pip that `venv` installs, so that nothing has to be downloaded for it."""
    import ensurepip

    return f"pip=={ensurepip.version()} --hash=sha256:{'0' * 64}"


def test_a_file_with_another_hash_is_refused(tmp_path: Path) -> None:
    """By uv and by pip, which is called then; what is as listed is installed."""
    folder, wheels = make_checkout(tmp_path / "course"), tmp_path / "wheels"
    add_to(folder, "uv", locked_entry("uv"))
    fake_torch(wheels, "2.13.0+fake")
    assert lab(folder, "start", PIP_FIND_LINKS=str(wheels)).returncode == 0
    wheel = fake_wheel(wheels, "listed", "1", "genuine = True\n")
    add_to(folder, "learning", f"listed==1 --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}")
    content = wheel.read_bytes()
    fake_wheel(wheels, "listed", "1", "genuine = False\n")
    offline = {"PIP_FIND_LINKS": str(wheels), "PIP_NO_INDEX": "1"}
    refused = lab(folder, "start", **offline)
    assert refused.returncode == 1
    assert "Hash mismatch for `listed==1`" in refused.stderr and "uv failed" in refused.stderr
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert "lab: a file is not the one that requirements/ names" in refused.stderr
    (site_packages,) = (folder / ".venv/lib").glob("python3*/site-packages")
    assert not (site_packages / "listed.py").exists()
    wheel.write_bytes(content)
    done = lab(folder, "start", PIP_FIND_LINKS=str(wheels))
    assert (done.returncode, done.stdout) == (0, "labkit start 2.13.0\n"), done.stderr
    assert (site_packages / "listed.py").read_text() == "genuine = True\n"
