"""Facts about one classroom for jupyterhub_config.py, passed on by `labkit hub` in the environment."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autograder.classroom import addresses
from autograder.classroom import site as sites
from autograder.classroom.folders import Folders, learners
from autograder.classroom.site import Site
from labkit import catalogue
from labkit.jupyterlab import config_path
from labkit.linux.free_port import free_port

SITE, RUNNING = "LABKIT_HUB_SITE", "LABKIT_HUB_RUNNING"
"""Environment variables: the file of settings, and the folder of sockets."""

COURSE_CONFIGURATION = Path(__file__).resolve().parent.parent
"""nbgrader reads nbgrader_config.py from the folder in which it starts."""

_OWN_FOLDERS = """\
c.ExchangeCollect.own_inbound = True
c.ExchangeFactory.release_feedback = 'autograder.classroom.exchange.ReleaseFeedback'
"""
"""nbgrader's settings where each learner sees only their own part of the exchange; system users share one."""


@dataclass(frozen=True)
class Classroom:
    """One classroom: settings, people, folders."""

    site: Site
    folders: Folders
    learners: list[str]

    @cached_property
    def service_url(self) -> str:
        """Address of the instructors' JupyterLab behind the proxy. Learners' sandboxes have another loopback."""
        return f"http://127.0.0.1:{free_port()}"

    @cached_property
    def page_url(self) -> str:
        """Address of the course's page behind the proxy."""
        return f"http://127.0.0.1:{free_port()}"

    @cached_property
    def gpus_url(self) -> str:
        """Address of the ledger of GPUs behind the proxy."""
        return f"http://127.0.0.1:{free_port()}"

    @property
    def grades_on_submit(self) -> bool:
        """Whether anything is judged as it comes in."""
        challenges = self.site.challenges
        return bool(self.site.grading.on_submit or challenges.open or challenges.traces)

    @property
    def service_environment(self) -> dict[str, str]:
        own, kept = self.folders.running / "teaching", self.folders.hub / "instructors"
        return {
            "LABKIT_ROOT": str(catalogue.root().resolve()),
            **catalogue.own_environment(),
            "LABKIT_COURSE": str(self.folders.course),
            "LABKIT_COURSE_NAME": self.site.course.name,
            # JupyterHub's services have the home of the user who starts it, which may be read-only
            "JUPYTER_CONFIG_DIR": str(kept / "config"),
            "JUPYTER_DATA_DIR": str(kept / "data"),
            "IPYTHONDIR": str(kept / "ipython"),
            "JUPYTER_CONFIG_PATH": os.pathsep.join([str(own), config_path("teaching", self.folders.course)]),
            "JUPYTER_RUNTIME_DIR": str(self.folders.running / "jupyter"),
            "JUPYTERHUB_DEFAULT_URL": "/lab?formgrader=true",
        }

    def first_page(self, handler: Any) -> str:
        """Return the first page after login: the course for instructors, their own server for learners."""
        user = handler.current_user
        if user is None:
            return ""  # the hub's own choice: the login page
        if user.name in self.site.course.instructors:
            return f"{addresses.service(self.site, self.site.course.name)}/lab?formgrader=true"
        return "/hub/spawn"


def from_environment() -> Classroom:
    """Return the classroom that `labkit hub` has started."""
    site = sites.load(Path(os.environ[SITE]))
    folders = Folders.of(site, Path(os.environ[RUNNING]))
    return Classroom(site, folders, learners(site, site.folder))


def ending_with_hub(command: list[str]) -> list[str]:
    """Return a command that ends when the hub ends."""
    return [sys.executable, "-P", str(Path(__file__).with_name("ending_with_hub.py")), *command]


def passed_on() -> dict[str, str]:
    """Return the environment variables that name the classroom to a service of the hub."""
    return {name: os.environ[name] for name in (SITE, RUNNING)}


def configure_instructors(folders: Folders, site: Site) -> None:
    """Write the settings of the instructors' JupyterLab: nbgrader's exchange, and what feedback shows."""
    own = folders.running / "teaching"
    own.mkdir(mode=0o700, exist_ok=True)
    (own / "nbgrader_config.py").write_text(
        "c = get_config()\n"
        f"c.Exchange.root = {str(folders.exchange)!r}\n"
        f"{'' if folders.shares_exchange else _OWN_FOLDERS}"
        f"c.FeedbackExporter.reveal = {site.grading.feedback!r}\n"
    )
