"""Compiled code is kept where no other user can change it."""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from unix_users import as_user, unix_users

from labkit import local
from labkit.clusters.job import Job
from labkit.private_folders import CACHES, SETTINGS, NotPrivate, cache_environment, private_folder

SHOW = f"""
import os, tempfile
[os.environ.get(name) for name in {[*CACHES, *SETTINGS]!r}]
"""


FALLS_BACK = """
import os
from labkit.private_folders import cache_environment
used = cache_environment({})["TRITON_CACHE_DIR"]
print((used, [os.stat(path).st_mode & 0o7777 for path in (used, os.path.dirname(used))]))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (*CACHES, *SETTINGS):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_folder_is_closed_to_others_and_made_once(cache: Path) -> None:
    folder = private_folder("torchinductor")
    assert folder == cache / "labkit" / "torchinductor" == private_folder("torchinductor")
    assert mode(folder) == mode(folder.parent) == 0o700


def test_a_folder_that_others_could_read_is_closed(cache: Path) -> None:
    private_folder("triton").chmod(0o755)
    assert mode(private_folder("triton")) == 0o700


@pytest.mark.parametrize("name", ["", "labkit", "labkit/triton"])
def test_a_folder_into_which_others_may_have_written_is_not_used(cache: Path, name: str) -> None:
    private_folder("triton")
    (cache / name).chmod(0o777)
    with pytest.raises(NotPrivate, match=r"other users can write into .*: close it by `chmod go-w"):
        private_folder("triton")
    used, modes = eval(subprocess.check_output([sys.executable, "-c", FALLS_BACK], text=True))
    assert not Path(used).is_relative_to(cache) and modes == [0o700, 0o700]


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: another owner")
@pytest.mark.parametrize("name", ["", "labkit", "labkit/triton"])
def test_a_folder_of_another_user_is_not_used(cache: Path, name: str) -> None:
    private_folder("triton")
    os.chown(cache / name, 12345, -1)
    with pytest.raises(NotPrivate, match="belongs to another user"):
        private_folder("triton")


def test_a_link_is_not_followed_out_of_the_cache_folder(cache: Path, tmp_path: Path) -> None:
    private_folder("triton").rmdir()
    (cache / "labkit" / "triton").symlink_to(tmp_path)
    with pytest.raises(OSError, match="triton"):
        private_folder("triton")


def test_what_the_user_has_chosen_stays_and_torchs_default_does_not(cache: Path) -> None:
    chosen = {"TORCHINDUCTOR_CACHE_DIR": "/scratch/ada", "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "1"}
    assert not cache_environment(chosen).keys() & chosen.keys()
    default = {"TORCHINDUCTOR_CACHE_DIR": f"{tempfile.gettempdir()}/torchinductor_ada"}
    assert cache_environment(default)["TORCHINDUCTOR_CACHE_DIR"] == str(cache / "labkit" / "torchinductor")


def test_a_temporary_cache_ends_with_its_process(tmp_path: Path) -> None:
    environment = {**os.environ, "XDG_CACHE_HOME": "/proc/nowhere", "TMPDIR": str(tmp_path)}
    used, _ = eval(subprocess.check_output([sys.executable, "-c", FALLS_BACK], env=environment, text=True))
    assert used.startswith(f"{tmp_path}/labkit-caches-") and not list(tmp_path.iterdir())


def test_ranks_keep_compiled_code_in_private_folders(cache: Path) -> None:
    values = local(1).run(Job(source=SHOW)).values[0]
    assert values == [*(str(cache / "labkit" / folder) for folder in CACHES.values()), *SETTINGS.values()]


NAMES_IN_THE_TEMPORARY_FOLDER = {
    "_inductor/runtime/cache_dir_utils.py": "TORCHINDUCTOR_CACHE_DIR",
    "_inductor/runtime/caching/implementations.py": "TORCHINDUCTOR_ENABLE_CACHING_MODULE",
    "_inductor/codecache.py": "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS",
    "_vendor/quack/cache/jit.py": "QUACK_CACHE_DIR",
    "_vendor/quack/autotuner.py": "QUACK_CACHE_DIR",
    "_vendor/quack/_compile_payload.py": "QUACK_COMPILE_WORKERS",
}
"""Files of torch with such a name, and the variable because of which it is not used."""
HARMLESS = re.compile(
    r"_dynamo/(config|convert_frame|debug_utils)\.py|_inductor/(compile_fx_ext|debug|exc|wrapper_benchmark)\.py"
    r"|export/_draft_export\.py|testing/.*|utils/benchmark/.*"  # for who debugs the compiler or torch itself
    r"|_inductor/cache\.py"  # used by nothing
    r"|distributed/elastic/agent/server/local_elastic_agent\.py"  # a random name
)


@pytest.mark.slow
def test_torch_takes_no_other_name_in_the_temporary_folder() -> None:
    """A new version may bring one: then look for what moves it, and add that to `private_folders`."""
    torch = Path(str(importlib.util.find_spec("torch").origin)).parent  # type: ignore[union-attr]
    names = re.compile(r"^[^#\n]*\b(?:gettempdir|default_cache_dir)\(\)", re.MULTILINE)
    found = {str(path.relative_to(torch)) for path in torch.rglob("*.py") if names.search(path.read_text())}
    unknown = {file for file in found if not HARMLESS.fullmatch(file)} - NAMES_IN_THE_TEMPORARY_FOLDER.keys()
    assert not unknown
    assert set(NAMES_IN_THE_TEMPORARY_FOLDER.values()) <= {*CACHES, *SETTINGS}


COMPILE = """
import glob, os, tempfile, torch
torch.compile(lambda x: x.sin() + 1)(torch.ones(8))
import torch._inductor.codecache as codecache
(bool(glob.glob(os.environ["TORCHINDUCTOR_CACHE_DIR"] + "/**/*.so", recursive=True)), tempfile.gettempdir())
"""


@pytest.mark.slow
def test_nothing_is_executed_or_written_below_the_name_that_another_user_has_taken(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user has made `torchinductor_USER` beforehand, open to all."""
    with unix_users("eve") as users:
        folder = users.folder / "tmp"
        folder.mkdir()
        folder.chmod(0o1777)
        taken = folder / "torchinductor_ada"
        as_user(users.names[0], "bash", "-c", f"umask 0; mkdir {taken}").check_returncode()
        assert mode(taken) == 0o777 and taken.stat().st_uid != os.geteuid()
        monkeypatch.setenv("TMPDIR", str(folder))
        monkeypatch.setenv("LOGNAME", "ada")
        compiled, used = local(1).run(Job(source=COMPILE)).values[0]
        assert used == str(folder)
        assert compiled
        assert list(taken.iterdir()) == []
