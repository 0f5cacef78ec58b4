"""Containerfiles and the compose file: what they promise; and the builder that runs their steps without podman."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from overlays import needs_overlays

from labkit.dashboard.grafana import grafana_dashboard

ROOT = Path(__file__).parents[2]
CONTAINERS = ROOT / "cluster" / "containers"
sys.path.insert(0, str(CONTAINERS / "without_registry"))
import context  # noqa: E402
from containerfile import Stage, instructions, stages  # noqa: E402

FILES = sorted(CONTAINERS.glob("*.Containerfile"))
SECRETS = re.compile(r"(?i)password|secret|token|api_?key|credential")
BUILDER = CONTAINERS / "without_registry" / "build.py"


def _stages(file: Path) -> list[Stage]:
    return stages(file.read_text(), {})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_an_image_runs_as_nobody_special_and_says_whether_it_works(file: Path) -> None:
    stage = _stages(file)[-1]
    user, health, command = (stage.last(each) for each in ("USER", "HEALTHCHECK", "CMD"))
    assert user is not None and user.text == "1000"
    assert health is not None and command is not None
    # nothing is installed after the user has changed
    after = stage.instructions[stage.instructions.index(user) :]
    assert not [each for each in after if each.name in ("RUN", "COPY")]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_steps_are_pinned_and_leave_nothing_behind(file: Path) -> None:
    first = instructions(file.read_text())[0]
    assert re.fullmatch(r"DEBIAN=docker\.io/library/debian:bookworm-\d{8}-slim", first.text)
    for each in instructions(file.read_text()):
        assert not (each.name in ("ARG", "ENV") and SECRETS.search(each.text)), f"line {each.line}"
        if "apt-get install" in each.text:
            assert "--no-install-recommends" in each.text and "rm -rf /var/lib/apt/lists/*" in each.text
        if "pip install" in each.text:
            assert each.text.count("pip install") == each.text.count("--no-cache-dir")
            # from a list, with hashes, but for torch and the lab itself
            (wanted,) = re.findall(
                r"(--require-hashes -r requirements/\w+\.txt|-r requirements/torch\.txt|\.\S*)$", each.text
            )
            assert wanted in (".", "./autograder") or (ROOT / wanted.split()[-1]).exists()


def test_grading_begins_with_the_steps_of_notebooks() -> None:
    """The same layers, built once; and each version is pinned in one way."""
    notebooks, grading = (_stages(CONTAINERS / f"{name}.Containerfile") for name in ("notebooks", "grading"))
    for own, other in zip(notebooks[:2], grading[:2], strict=True):
        steps = [(each.name, each.text) for each in own.instructions]
        assert (own.base, own.name) == (other.base, other.name)
        assert steps == [(each.name, each.text) for each in other.instructions]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_builds_see_what_they_copy_and_learners_images_no_solutions_and_no_rubrics(file: Path, tmp_path: Path) -> None:
    context.copy(ROOT, file, tmp_path / "context")
    found = {each.name for each in (tmp_path / "context").iterdir()}
    own = {"autograder", "cluster", "solutions"} if file.name == "grading.Containerfile" else set()
    shared = {"LICENSE", "README.md", "docs", "labkit", "notebooks", "pyproject.toml", "requirements", "templates"}
    assert found == shared | own
    for stage in _stages(file):
        for each in stage.instructions:
            if each.name == "COPY" and not each.options()[0]:
                *sources, _ = each.text.split()
                assert all((tmp_path / "context" / source).exists() for source in sources), f"line {each.line}"
    assert not [each for each in (tmp_path / "context").rglob("*") if each.name.startswith((".", "__pycache__"))]
    # recordings of solved notebooks
    assert bool(own) == (tmp_path / "context" / "docs" / "live").exists()


def test_learners_get_released_notebooks_alone() -> None:
    *_, packages, release, last = _stages(CONTAINERS / "notebooks.Containerfile")
    copied = {(each.options()[0].get("from"), each.options()[1].split()[0])
              for each in last.instructions if each.name == "COPY"}  # fmt: skip
    assert copied == {("packages", "/opt/lab/.venv"), ("release", "/opt/course")}
    assert (packages.name, release.name) == ("packages", "release")
    (step,) = [each for each in release.instructions if each.name == "RUN"]
    assert "own_copy" in step.text and "cp -r templates /opt/course/" in step.text


def test_the_last_rule_that_matches_a_file_or_its_folder_decides() -> None:
    rules = context.rules("# all but:\n*\n!kept\n!more/of\nkept/*.log\n**/.*\n!kept/last.log\nkept/*/x?\n")
    sent = ("kept", "kept/a", "kept/deep/a.log", "more/of/it", "kept/last.log", "kept/deep/x")
    left = ("other", "more", "more/a", "kept/a.log", "kept/.git", "kept/deep/.env/key", "kept/deep/x1", ".git/a")
    assert [name for name in (*sent, *left) if context.is_sent(name, rules)] == list(sent)
    assert context.is_sent("any/file", context.rules(""))
    for text in ("a\n[ab]c", "a\n!b/*"):
        with pytest.raises(ValueError, match=r"line 2: .* is not known here"):
            context.rules(text)


def test_an_unknown_instruction_is_an_error() -> None:
    with pytest.raises(ValueError, match="line 2: ONBUILD is not known here"):
        instructions("FROM debian\nONBUILD RUN true\n")
    with pytest.raises(ValueError, match="line 1: RUN before the first FROM"):
        stages("RUN true\n", {})


def test_every_step_of_a_containerfile_is_run_and_the_image_is_read_only(tmp_path: Path) -> None:
    """The builder itself, on a Debian of this machine's packages; nothing is downloaded."""
    needs_overlays(tmp_path)
    (tmp_path / "context" / "private").mkdir(parents=True)
    for name, text in (("greeting.txt", "hello\n"), ("private/key", "secret\n"), (".dockerignore", "private\n")):
        (tmp_path / "context" / name).write_text(text)
    file = tmp_path / "Containerfile"
    file.write_text("""\
ARG DEBIAN=docker.io/library/debian:bookworm-slim
FROM ${DEBIAN} AS base
ARG WORD=none
RUN useradd --uid 1000 --user-group --create-home lab \\
    && dpkg-query -W apt | cut -f1
ENV GREETED=/opt/greeted
FROM base AS packages
WORKDIR /opt
COPY greeting.txt ./
COPY . all
RUN mkdir greeted && ls -A all >greeted/copied && sed "s/hello/hello, $(id -un)/" greeting.txt >greeted/text
FROM base AS unused
RUN false
FROM base
COPY --from=packages /opt/greeted /opt/greeted
USER 1000
WORKDIR /home/lab
HEALTHCHECK --interval=5s CMD ["test", "-r", "/home/lab/ready"]
CMD ["sh", "-c", "echo >ready; sleep 1000"]
""")
    into = tmp_path / "image"
    script = 'cat "$GREETED"/*; id -u; touch /opt/new 2>&1; touch ~/mine && ls ~; ls /opt; unshare -Ur id -u'
    done = subprocess.run(
        [sys.executable, BUILDER, file, "--context", tmp_path / "context", "--into", into, "--run", script],
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    started, _, shown = done.stdout.partition(f"$ {script}\n")
    assert started.rstrip().endswith("healthy")
    *lines, took = shown.splitlines()
    # the last: namespaces can be made in it, as the judge's sandboxes need
    assert lines == [
        ".dockerignore", "greeting.txt", "hello, root", "1000", "touch: cannot touch '/opt/new': Read-only file system",
        "mine", "ready", "greeted", "0",
    ]  # fmt: skip
    assert re.fullmatch(r"\[[\d.]+ s, [\d.]+ s of CPU\]", took)
    # an image of few packages, not this machine's files
    assert not (into / "base" / "usr" / "bin" / "git").exists()
    # a step that fails ends the build
    file.write_text("FROM x\nRUN echo no >&2; exit 3\n")
    failing = [sys.executable, BUILDER, file, "--context", tmp_path / "context", "--into", tmp_path / "b"]
    again = subprocess.run(failing, capture_output=True, text=True)
    assert again.returncode == 1 and "exit status 3" in again.stderr


def _compose() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())
    return content


def test_services_are_hardened_reachable_from_this_machine_alone_and_keep_data_in_volumes() -> None:
    compose = _compose()
    for name, service in compose["services"].items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges" in service["security_opt"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), name
        assert re.search(r":(\d|v\d)", service["image"]) and not service["image"].endswith(":latest")
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            assert source in compose["volumes"] or (CONTAINERS / source).exists(), volume
        if "build" in service:
            build = service["build"]
            assert (CONTAINERS / build["context"] / build["dockerfile"]).exists()
        if service.get("restart") and "build" not in service:
            # ours have one in their images
            assert "healthcheck" in service, name
    assert compose["services"]["grading"]["profiles"] == ["grading"]


def test_grafana_gets_our_dashboard_and_the_prometheus_of_the_file() -> None:
    provisioning = CONTAINERS / "grafana"
    assert json.loads((provisioning / "dashboards" / "training.json").read_text()) == json.loads(grafana_dashboard())
    (source,) = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())["datasources"]
    host, port = re.fullmatch(r"http://(\w+):(\d+)", source["url"]).groups()  # type: ignore[union-attr]
    assert _compose()["services"][host]["ports"] == [f"127.0.0.1:{port}:{port}"]
    (provider,) = yaml.safe_load((provisioning / "dashboards" / "labkit.yaml").read_text())["providers"]
    mounted = dict(each.split(":")[:2] for each in _compose()["services"]["grafana"]["volumes"])
    assert provider["options"]["path"] == f"{mounted['./grafana']}/dashboards"
