"""Three people at once whose servers are jobs on a real Slurm, each as a user of the cluster of their own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from classroom_story import Place, three_people
from shared_exchange import what_others_reach
from slurm_rig import SlurmRig  # beside this file
from small_classroom import Classroom, Hub, small_classroom
from system_packages import needs_packages
from unix_users import PASSWORD, Users, lines_that_open, unix_users

from labkit.linux.free_port import free_port

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive]


@pytest.fixture
def users() -> Iterator[Users]:
    with unix_users("ada", "grace", "teacher") as made:
        yield made


@pytest.fixture
def rig(users: Users) -> Iterator[SlurmRig]:
    """A Slurm of all users of this machine."""
    needs_packages("munge", "slurmctld", "slurmd", "slurm-client", "iproute2")
    (users.folder / "slurm").mkdir()
    with SlurmRig(users.folder / "slurm", mounts=lines_that_open(users.folder / "opened")) as rig:
        if not rig.namespaces:
            pytest.skip("needs root: nodes with a file system of their own")
        yield rig
        rig.clear()


@pytest.fixture
def classroom(rig: SlurmRig, users: Users, tmp_path: Path) -> Classroom:
    made = small_classroom(tmp_path)
    made.address = f"http://{rig.address}:{free_port()}"
    made.environment.update(rig.environment)
    shared, lab = users.folder / "exchange", made.learners_lab(users.folder / "lab")
    shared.mkdir()
    ada, grace, teacher = users.names
    made.site.write_text(
        f'[hub]\naddress = "{made.address}"\n'
        f'[course]\nname = "small-course"\ninstructors = ["{teacher}"]\nlearners = ["{ada}", "{grace}"]\n'
        f'[login]\nkind = "pam"\n'
        f'[servers]\nkind = "slurm"\nstart_seconds = 600\n[servers.slurm]\nexchange = "{shared}"\n'
        f'partition = "lab"\ntime = "30"\nmemory = "1500M"\ncpus = 1\nprologue = "export LABKIT_ROOT=\'{lab}\'"\n'
    )
    return made


def test_three_people_at_once_on_slurm(classroom: Classroom, users: Users, rig: SlurmRig) -> None:
    ada, grace, teacher = users.names

    def processes(_: Hub, learner: str) -> list[psutil.Process]:
        own = [one for one in psutil.process_iter(["username", "cmdline"]) if one.info["username"] == learner]
        # those of an earlier server that nobody waits for have no command
        (server,) = [one for one in own if "batchspawner.singleuser" in (one.info["cmdline"] or ())]
        return [server, *server.children(recursive=True)]

    passwords = dict.fromkeys(users.names, PASSWORD)
    three_people(Place(classroom, users.home, processes, True, (ada, grace), teacher, passwords))
    assert len(rig.jobs()) == 2, "servers go on after the hub has ended"
    what_others_reach(classroom, users)
