"""Another user of the machine tries everything that a user's runs have opened, and finds nothing.

Each test prints a table of what was tried; `pytest -s` shows it.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import belongings
import psutil
import pytest
import requests
import zmq
from agents import agents
from announcing import When
from classroom_person import Person
from jupyter_servers import printed_address
from small_classroom import small_classroom
from unix_users import Attempt, Users, as_user, attempts_of_another, table, unix_users
from waiting import BROKEN_SECONDS, wait_until

from autograder.classroom import configured
from labkit import Job, local
from labkit.clusters.agent import LaunchPlan
from labkit.clusters.live import LiveRanks
from labkit.clusters.local.rank import ENTRY
from labkit.torch_versions.stores import TCPStore

GROUP = """\
import multiprocessing, torch, torch.distributed as dist
from multiprocessing.shared_memory import SharedMemory
dist.init_process_group()
dist.all_reduce(torch.ones(3))
shared = torch.ones(1 << 10).share_memory_()
segment = SharedMemory(create=True, size=64)
lock = multiprocessing.Lock()
queue = multiprocessing.Queue()
"""
WAIT = """\
import os, time
print("waits", dist.get_rank(), flush=True); exec("while not os.path.exists(go):\\n    time.sleep(0.05)")
segment.unlink()
"""
STORE = "TCP port, as a client of torch's store"


@pytest.fixture(scope="module")
def users() -> Iterator[Users]:
    with unix_users("eve") as made:
        yield made


@pytest.fixture
def taken(users: Users, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A temporary folder of all users, in which eve has made what others' programs will look for."""
    folder = users.folder / "tmp"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o1777)
    names = ("torchinductor_ada", "torch_extensions", "ada", "quack_generated_epilogues")
    made = [folder / name for name in names]
    as_user(users.names[0], "bash", "-c", f"umask 0; mkdir -p {' '.join(map(str, made))}").check_returncode()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("LOGNAME", "ada")
    return folder


@pytest.fixture(scope="module")
def own_processes() -> Callable[[], set[int]]:
    """Returns the PIDs of this process's own, with the forkserver of ranks.

    Without what tests of other modules share, such as a running Slurm: its ports are open to its nodes.
    """
    earlier = {*belongings.own(belongings.everything())}

    def pids() -> set[int]:
        found = belongings.everything()
        shared = earlier | belongings.below(earlier, found) | {os.getpid()}
        return {*belongings.own(found), *belongings.forkservers(found)} - shared

    return pids


def names_taken(taken: Path) -> list[Attempt]:
    """Return what lies in the folders that eve has made: a program of another user has then used them."""
    folders = [folder for folder in taken.iterdir() if folder.stat().st_uid != os.geteuid()]
    seen = {folder.name: ", ".join(sorted(path.name for path in folder.iterdir())) for folder in folders}
    return [Attempt("predictable name in the temporary folder", name, names) for name, names in seen.items()]


def nothing_is_seen(attempts: list[Attempt], capsys: pytest.CaptureFixture[str], *kinds: str) -> None:
    with capsys.disabled():
        print(f"\n{table(attempts)}")
    assert [attempt for attempt in attempts if attempt.seen] == []
    assert set(kinds) <= {attempt.kind for attempt in attempts}


def test_what_is_open_is_seen(users: Users) -> None:
    """Else a table of nothing would say nothing."""
    folder = users.folder / "open"
    folder.mkdir(mode=0o755)
    (folder / "read").write_text("")
    (folder / "written").touch(mode=0o600)
    (folder / "written").chmod(0o622)
    seen_all = threading.Event()
    with (
        socket.socket(socket.AF_UNIX) as unix_socket,
        ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as pages,
        zmq.Context() as context,
        context.socket(zmq.XPUB) as kernel,
    ):
        threading.Thread(target=pages.serve_forever, daemon=True).start()
        kernel_port = kernel.bind_to_random_port("tcp://127.0.0.1")

        def welcome() -> None:
            while not seen_all.is_set():
                # a client without a greeting, such as a browser, is of an old version, which gets all output
                if kernel.poll(50) and kernel.recv() == b"\1":
                    kernel.send(b"output")

        kernel.xpub_verbose = True  # it hears of each subscriber
        welcomes = threading.Thread(target=welcome)
        welcomes.start()
        unix_socket.bind(f"\0{folder}")  # a name that the file system does not protect
        unix_socket.listen()
        store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False)
        found = attempts_of_another(users.names[0], [os.getpid()], [folder], [sys.orig_argv[0]])
        pages.shutdown()
        seen_all.set()
        welcomes.join(BROKEN_SECONDS)
    seen = {(attempt.kind, attempt.what): attempt.seen for attempt in found if attempt.seen}
    assert "answers b'HTTP/1.0 " in seen["TCP port, as a browser", f"127.0.0.1:{pages.server_port}"]
    assert "GET /lab: 200" in seen["TCP port, as a browser, for Jupyter's pages", f"127.0.0.1:{pages.server_port}"]
    assert seen["TCP port, as a client of a kernel", f"127.0.0.1:{kernel_port}"] == "sends b'output'"
    (stores,) = {text for (kind, _), text in seen.items() if kind == STORE}
    assert "keys, into which one was written" in stores and store.get("left by another user") == b"1"
    assert seen["Unix socket", f"@{folder}"] == "connected"
    assert seen["file", f"{folder}/read"] == "can be read"
    assert seen["file", f"{folder}/written"] == "can be written"
    assert seen["arguments of a process", str(os.getpid())] == "a secret"
    assert "TCP port, on other interfaces" in {kind for kind, _ in seen}


def look_when_all_wait(
    users: Users,
    taken: Path,
    own_processes: Callable[[], set[int]],
    go: Path,
    found: list[Attempt],
    ranks: int,
    secrets: Sequence[str] = (),
) -> When:
    def look() -> None:
        folders = [path for path in taken.iterdir() if path.stat().st_uid == os.geteuid()]
        try:
            found.extend(attempts_of_another(users.names[0], own_processes(), folders, secrets))
        finally:
            go.touch()

    return When(look, waiting=ranks)


def test_of_a_run_of_ranks(
    users: Users, taken: Path, own_processes: Callable[[], set[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go, found = tmp_path / "go", list[Attempt]()
    when = look_when_all_wait(users, taken, own_processes, go, found, 2)
    run = local(2).run(Job(source=f"go = {str(go)!r}\n{GROUP}{WAIT}"), when.on_output, when.on_state)
    run.raise_if_failed()
    nothing_is_seen(
        found, capsys, "TCP port, as a client of torch's store", "/proc of a process", "shared memory", "file"
    )


def test_of_live_ranks(
    users: Users, taken: Path, own_processes: Callable[[], set[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found: list[Attempt] = []
    ranks = LiveRanks(local(2), Job(source=""))
    try:
        ranks.run(Job(source=GROUP))
        folders = [path for path in taken.iterdir() if path.stat().st_uid == os.geteuid()]
        found = attempts_of_another(users.names[0], own_processes(), folders)
        ranks.run(Job(source="segment.unlink()"))
    finally:
        ranks.close()
    nothing_is_seen([*found, *names_taken(taken)], capsys, STORE, "/proc of a process", "shared memory")


def test_of_a_launch(
    users: Users, taken: Path, own_processes: Callable[[], set[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go = tmp_path / "go"
    (tmp_path / "train.py").write_text(f"go = {str(go)!r}\n{GROUP}{WAIT}")
    command = [sys.executable, "-m", "labkit", "launch", str(tmp_path / "train.py"), "-n", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        printed: list[str] = []
        assert process.stdout is not None
        try:
            for line in process.stdout:
                printed.append(line)
                if all(f"waits {rank}" in "".join(printed) for rank in range(2)):
                    break
            else:
                pytest.fail("".join(printed))
            folders = [path for path in taken.iterdir() if path.stat().st_uid == os.geteuid()]
            found = attempts_of_another(users.names[0], own_processes(), folders)
        finally:
            go.touch()
            printed.append(process.stdout.read())
    assert process.returncode == 0, "".join(printed)
    nothing_is_seen(
        [*found, *names_taken(taken)], capsys, "/proc of a process", "arguments of a process", "signal to a process"
    )


def test_of_a_dashboard(users: Users, taken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "labkit", "dashboard", str(tmp_path), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            token = process.stdout.readline().partition("token=")[2].split()[0]
            found = attempts_of_another(users.names[0], [process.pid], [tmp_path], [token])
        finally:
            process.terminate()
    nothing_is_seen([*found, *names_taken(taken)], capsys, "TCP port, as a browser", "arguments of a process", "file")


def test_of_a_notebook(
    users: Users,
    taken: Path,
    own_processes: Callable[[], set[int]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """JupyterLab with a kernel that runs, in a home that others can enter: Jupyter closes what it keeps there."""
    home = users.folder / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    for name in ("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "XDG_RUNTIME_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    log = tmp_path / "log"
    command = [sys.executable, "-m", "labkit", "start", "--no-browser", "--port=0"]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            page, _, token = printed_address(server, log).partition("?token=")
            kernels, known = page.replace("/lab/tree/", "/api/kernels?"), {"Authorization": f"token {token}"}
            kernel = requests.post(kernels, headers=known, json={}, timeout=BROKEN_SECONDS).json()["id"]
            asked = f"{kernels.partition('?')[0]}/{kernel}"
            files = home / ".local/share/jupyter/runtime"
            connection = json.loads((files / f"kernel-{kernel}.json").read_text())

            def listens() -> bool:
                with suppress(OSError), socket.create_connection((connection["ip"], connection["iopub_port"])):
                    return True
                return False

            wait_until(listens, lambda: requests.get(asked, headers=known, timeout=BROKEN_SECONDS).text)
            own = [path for path in taken.iterdir() if path.stat().st_uid == os.geteuid()]
            secret = [token, connection["key"], connection["curve_secretkey"]]
            found = attempts_of_another(users.names[0], own_processes(), [*own, files], secret)
        finally:
            server.terminate()
    nothing_is_seen(
        [*found, *names_taken(taken)],
        capsys,
        *("TCP port, as a browser, for Jupyter's pages", "TCP port, as a client of a kernel", "file"),
    )
    ports = {attempt.what for attempt in found if attempt.kind == "TCP port, as a client of a kernel"}
    assert {f"{connection['ip']}:{connection[name]}" for name in ("shell_port", "iopub_port")} <= ports


def test_of_a_hub(
    users: Users, taken: Path, own_processes: Callable[[], set[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a learner whose server runs a kernel. The hub is root's, and the learner's server another user's."""
    root = users.folder / "lab"
    root.mkdir()
    classroom = small_classroom(root)
    with classroom.running() as hub:
        ada = Person(classroom.address, "ada")
        ada.start_server()
        assert ada.run("print(1 + 1)") == "2\n"
        (jupyterhub, *_) = psutil.Process(hub.process.pid).children()
        running = Path(jupyterhub.environ()[configured.RUNNING])
        found = attempts_of_another(users.names[0], own_processes(), [classroom.folder, running], [hub.password])
    nothing_is_seen([*found, *names_taken(taken)], capsys, "TCP port, as a browser, for Jupyter's pages", "file")


def test_of_two_nodes(
    users: Users, taken: Path, own_processes: Callable[[], set[int]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    go, found = tmp_path / "go", list[Attempt]()
    with agents(2) as nodes:
        ready = nodes.nodes.wait_until_ready(BROKEN_SECONDS)[0]
        job = Job(source=f"go = {str(go)!r}\n{GROUP}{WAIT}")
        plan = LaunchPlan("run", ENTRY, job, 2, 1, master_port=ready.port, secret=ready.secret)
        when = look_when_all_wait(users, taken, own_processes, go, found, 2, [ready.secret.hex()])
        nodes.nodes.run(plan, when.on_output, when.on_state).raise_if_failed()
    nothing_is_seen(
        [*found, *names_taken(taken)], capsys, STORE, "TCP port, on other interfaces", "arguments of a process"
    )
    store = f"127.0.0.1:{ready.port}"
    assert {attempt.kind for attempt in found if attempt.what == store} >= {STORE, "TCP port, nothing sent"}
