"""A classroom with a small course: one assignment with one exercise, an instructor and two learners."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import nbformat
import second_exercise
from waiting import BROKEN_SECONDS, wait_until

import autograder
from labkit.linux.free_port import free_port

ROOT = Path(autograder.__file__).resolve().parent.parent


@dataclass
class Classroom:
    """One classroom's folder; `running` opens its hub."""

    root: Path
    address: str
    site: Path
    environment: dict[str, str] = field(repr=False, default_factory=dict)
    moved_to: Path | None = None
    """`folder` of `[hub]`, if the settings name one."""
    prefix: tuple[str, ...] = ()
    """A command that becomes the hub's."""

    @property
    def folder(self) -> Path:
        return self.moved_to or self.root / "classroom"

    @property
    def exchange(self) -> Path:
        return self.folder / "exchange" / "small-course"

    def labkit(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-m", "labkit", *arguments]
        return subprocess.run(command, env=self.environment, cwd=self.root, capture_output=True, text=True)

    def learners_lab(self, folder: Path) -> Path:
        """Copy what learners may see of the lab into a new folder; return it."""
        for part in ("labkit", "templates", "docs"):
            shutil.copytree(self.root / part, folder / part)
        return folder

    @property
    def certificate(self) -> Path:
        """The file that `use_tls` has written."""
        return self.root / "hub.pem"

    def use_tls(self, *names: str) -> None:
        """Give the hub a certificate of its own with alternative names such as `IP:127.0.0.1`."""
        key = self.root / "hub.key"
        asked = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=hub"]
        asked += ["-addext", f"subjectAltName={','.join(names)}", "-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run(asked, check=True, capture_output=True)
        self.address = self.address.replace("http:", "https:")
        text = self.site.read_text().replace("http:", "https:")
        tables = text.replace("[course]", f'certificate = "{self.certificate}"\nkey = "{key}"\n[course]')
        self.site.write_text(tables)

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Hub]:
        log = self.root / "hub.out"
        with log.open("w") as output:
            command = [sys.executable, "-P", "-m", "labkit", "hub", "--site", str(self.site), *arguments]
            hub = subprocess.Popen(
                [*self.prefix, *command], env=self.environment, cwd=self.root, stdout=output, stderr=output
            )
        try:

            def is_up() -> bool:
                assert hub.poll() is None, log.read_text()
                return "Ctrl-C stops the hub" in log.read_text()

            wait_until(is_up, log.read_text, pause_seconds=0.1)
            yield Hub(hub, log.read_text())
        finally:
            if hub.poll() is None:
                hub.send_signal(signal.SIGINT)
            hub.wait(BROKEN_SECONDS)


@dataclass
class Hub:
    process: subprocess.Popen[bytes]
    output: str

    @property
    def password(self) -> str:
        found = re.search(r"instructor instructor: password (\S+)", self.output)
        assert found, self.output
        return found[1]


def small_classroom(root: Path) -> Classroom:
    """Return a classroom with the exercise of tests/autograder/second_exercise.py, in a lab of its own."""
    second_exercise.add_to(root)
    notebook = second_exercise.notebook(second_exercise.NAME, second_exercise.SOLUTION, points=3)
    graded = notebook.cells[-1]
    graded.source = f"from labkit import grade\n\n{graded.source}"  # as in the course: validation runs it
    nbformat.write(notebook, root / f"notebooks/{second_exercise.PHASE}/{second_exercise.NOTEBOOK}.ipynb")
    template = root / f"templates/{second_exercise.NAME}.py"  # learners do not see the solution
    template.parent.mkdir(parents=True)
    solution = r"( +)### BEGIN SOLUTION\n.*### END SOLUTION\n"
    template.write_text(re.sub(solution, r"\1raise NotImplementedError\n", second_exercise.SOLUTION, flags=re.DOTALL))
    shutil.copytree(ROOT / "cluster/jupyterhub", root / "cluster/jupyterhub")
    (root / "docs").mkdir()
    for page in ("glossary.md", "guide.md"):
        shutil.copy(ROOT / "docs" / page, root / "docs")
    address = f"http://127.0.0.1:{free_port()}"
    site = root / "site.toml"
    site.write_text(
        f'[hub]\naddress = "{address}"\n[course]\nname = "small-course"\nlearners = ["ada", "grace"]\n'
        "[servers]\nstart_seconds = 600\nmemory_gib = 1.5\ndisk_gib = 0.25\n"
        '[challenges]\nopen = ["goodput"]\ntraces = ["all_reduce"]\n'
    )
    environment = {**os.environ, "LABKIT_ROOT": str(root), "JUPYTER_CONFIG_DIR": str(root / "config")}
    return Classroom(root, address, site, environment)
