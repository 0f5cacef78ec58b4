"""A site's settings, and what `labkit hub` does without starting a hub: check, passwords, backup and restore."""

from __future__ import annotations

import dbm
import os
import re
import socket
import sqlite3
import subprocess
import sys
import tarfile
from pathlib import Path

import bcrypt
import pytest
from small_classroom import ROOT, small_classroom
from system_packages import needs_packages

from autograder.classroom import check, requirements
from autograder.classroom import site as sites
from autograder.classroom.backup import backup, restore
from autograder.classroom.folders import Folders, add_learners, learners
from autograder.classroom.logins.first_use import forget, give_passwords, have_passwords, renew_password
from autograder.sandbox.bwrap import bwrap
from labkit.command_line.commands import CommandError

POD_SERVERS = (
    '[servers]\nkind = "kubernetes"\n[servers.kubernetes]\nimage = "x"\nhub_address = "http://x:1"\n'
    'classroom_claim = "c"\n'
)
GPU_PODS = '[gpus]\ncluster = "kubernetes"\nkubernetes.image = "x"\n'
WRONG = {
    'adress = "http://127.0.0.1:8000"': "hub.adress: there is no such entry; known here: address, certificate",
    'address = "127.0.0.1:8000"': "hub.address: '127.0.0.1:8000' is not an address such as http://127.0.0.1:8000",
    "address = 8000": "hub.address: 8000 should be text, in quotes",
    'address = "http://127.0.0.1:99999"': "hub.address: 'http://127.0.0.1:99999': the port must be from 1 to 65535",
    'address = "http://127.0.0.1:8000/lab"': "hub.address: 'http://127.0.0.1:8000/lab': the hub has a host name and a",
    'folder = "x"\n[course]\nlearners = "ada"': 'course.learners: "ada" should be a list, such as',
    'folder = "x"\n[servers.docker]': "servers.docker.hub_address: this entry is missing",
    'address = "http://0.0.0.0:80"\n[servers]\nkind = "kubernetes"\n[servers.kubernetes]\nimage = "x"\n'
    'classroom_claim = "c"\nhub_address = "http://hub"': "it needs another port than [hub] address",
    'address = "https://hub.example"': "https needs a certificate and a key",
    'subdomain_host = "hub.example"': "hub.subdomain_host: 'hub.example' is not an address such as",
    'subdomain_host = "http://127.0.0.1:8000"': "'http://127.0.0.1:8000' has no names below it",
    'subdomain_host = "http://localhost:8000"': "'http://localhost:8000' has no names below it",
    'address = "https://[::]:8443"\ncertificate = "c"\nkey = "k"\nsubdomain_host = "http://hub.example"': (
        "with a certificate it begins with https://"
    ),
    'certificate = "c.pem"': "certificate and key are given together",
    'address = "http://127.0.0.1:8000"\n[course]\nname = "A course"': "course.name: 'A course' is not a name: ",
    'folder = "x"\n[course]\nlearners = ["ada", "Bob"]': "course.learners.1: 'Bob' cannot be a user",
    'folder = "x"\n[course]\nlearners = ["instructor"]': "an instructor cannot be a learner, too",
    'folder = "x"\n[course]\ninstructors = []': "course.instructors: List should have at least 1 item",
    'folder = "x"\n[servers]\nidle_minutes = "2"': 'servers.idle_minutes: "2" should be a whole number, without quotes',
    'folder = "x"\n[servers]\nidle_ranks_minutes = -1': "servers.idle_ranks_minutes: -1 should be greater than or",
    'folder = "x"\n[servers]\nmemory_gib = 0.1': "servers.memory_gib: a server with one kernel needs 0.5 GiB",
    'folder = "x"\n[servers]\ndisk_gib = -1': "servers.disk_gib: -1 should be greater than or equal to 0",
    'folder = "x"\n[servers]\nkind = "slurm"': "the table [servers.slurm] is missing",
    '[login]\nkind = "pam"\n[servers]\nkind = "slurm"\n[servers.slurm]\nexchange = "here"': (
        "servers.slurm.exchange: 'here' is not an absolute path"
    ),
    '[servers]\nkind = "slurm"\n[servers.slurm]\nexchange = "/x"\n[login]\nkind = "first-use"': (
        "servers are those of users of the cluster, so the login must prove who that is"
    ),
    '[servers]\nkind = "users"\nusers = { exchange = "/x", lab = "/y" }\n[login]\nkind = "first-use"': (
        "servers are those of users of this machine, so the login must prove who that is"
    ),
    'folder = "x"\n[servers]\nkind = "vm"': "servers.kind: \"vm\" should be 'sandbox', 'docker', 'kubernetes', 'slurm'",
    'folder = "x"\n[servers]\nkind = "docker"': "the table [servers.docker] is missing",
    'folder = "x"\n[servers.docker]\nimage = "x"\ncpus = 0': "servers.docker.cpus: 0 should be greater than 0",
    'folder = "x"\n[servers.docker]\nimage = "x"\nhub_address = "https://hub:8081"': "hub's API by http://, inside",
    'folder = "x"\n[servers.kubernetes]\nclassroom_path = "/x"': "classroom_path: '/x' is not a path below",
    'folder = "x"\n[gpus]': "servers of kind slurm or kubernetes use. A sandbox has neither network nor devices",
    '[servers]\nkind = "docker"\ndocker = { image = "x", hub_address = "http://x:1" }\n[gpus]': (
        "A container is no user of a cluster"
    ),
    f"{POD_SERVERS}[gpus]": 'cells of servers on kubernetes borrow GPUs there: write cluster = "kubernetes"',
    f'{POD_SERVERS}[gpus]\ncluster = "kubernetes"': "the table [gpus.kubernetes] is missing",
    f'{GPU_PODS}kubernetes.hub_address = "http://x:2"\n{POD_SERVERS}service_account = "x"': "with [gpus] leave it out",
    f'{POD_SERVERS}{GPU_PODS}kubernetes.hub_address = "http://x:1"': "a port of its own",
    f'{POD_SERVERS}{GPU_PODS}kubernetes.hub_address = "http://x:8000"': "a port of its own",
    f'{POD_SERVERS}{GPU_PODS}kubernetes.hub_address = "https://x:2"': "cells reach the hub by http://",
    f'{POD_SERVERS}{GPU_PODS}kubernetes.namespace = "Lab"': "'Lab' is not the name of a namespace",
    f'{POD_SERVERS}{GPU_PODS}kubernetes.pod_template = "x.yaml"': "'x.yaml' is not an absolute path",
    'folder = "x"\n[gpus]\ncluster = "local"': "gpus.cluster: \"local\" should be 'slurm' or 'kubernetes'",
    '[login]\nkind = "pam"\n[servers]\nkind = "slurm"\nslurm = { exchange = "/x" }\n[gpus]\nnnodes = 4\n'
    "gpus_per_node = 2\nmost_ranks = 4": "`%cluster slurm` alone would ask for more ranks",
    'folder = "x"\n[grading]\ncounts = "first"': "grading.counts: \"first\" should be 'last' or 'best'",
    'folder = "x"\n[grading]\nfeedback = "all"': "grading.feedback: \"all\" should be 'details', 'titles' or 'marks'",
    'folder = "x"\n[challenges]\nopen = ["chess"]': "there is no challenge chess; known: all_reduce",
    '[challenges]\nopen = ["goodput"]\ntraces = ["goodput"]': "goodput: traces show the instances on which",
    'folder = "x"\n[course]\nname = "grading"': "'grading' is the name of a service of the hub",
    'folder = "x"\n[login]\nkind = "openid"': "the table [login.openid] is missing",
    'folder = "x"\n[login.lti]\nissuer = "lms.example"': "login.lti.issuer: 'lms.example' is not an address such as",
    'address = "http://hub.example"\n[login]\nkind = "lti"\n[login.lti]\nissuer = "https://lms.example"\n'
    'client_id = "lab"\nauthorize_url = "https://lms.example/a"\nkeys_url = "https://lms.example/k"': (
        "a learning platform opens the hub only by https"
    ),
    'folder = "x"\n[login]\nkind = "none"': "login.kind: \"none\" should be 'first-use', 'pam', 'openid' or 'lti'",
}


@pytest.mark.parametrize(("text", "reason"), WRONG.items(), ids=[text.splitlines()[-1] for text in WRONG])
def test_a_wrong_entry_is_named_with_its_file_and_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f"# a comment\n[hub]\n{text}\n")
    with pytest.raises(CommandError) as caught:
        sites.load(path)
    line = 2 + len(text.splitlines())
    if "needs a certificate" not in reason and "given together" not in reason and "only by https" not in reason:
        assert f"{path}:{line}: " in str(caught.value)
    assert reason in str(caught.value)


def test_what_is_no_toml_and_what_is_not_there_is_reported(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text("[hub\n")
    with pytest.raises(CommandError, match=r"is not valid TOML: .*line 1"):
        sites.load(tmp_path / "site.toml")
    with pytest.raises(CommandError, match="cannot be read"):
        sites.load(tmp_path / "other.toml")


def test_the_lab_s_own_settings_are_the_defaults() -> None:
    assert sites.load(ROOT / sites.DEFAULT) == sites.Site()


def test_learners_come_from_both_lists_and_a_wrong_line_is_named(tmp_path: Path) -> None:
    site = sites.Site(course=sites.Course(learners=["ada"]))
    (tmp_path / "learners.txt").write_text("# the class of 2027\ngrace  # late\nada")
    add_learners(tmp_path, ["alan"])
    assert learners(site, tmp_path) == ["ada", "grace", "alan"]
    add_learners(tmp_path, ["../x"])
    with pytest.raises(CommandError, match=r"learners.txt:5: '\.\./x' cannot be a user: write x \("):
        learners(site, tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_lists_and_settings_that_windows_wrote_are_read(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "learners.txt").write_bytes("ada\r\ngrace # Größe\r\n".encode(encoding))
    site = tmp_path / "site.toml"
    site.write_bytes('[course]\r\nlearners = ["alan"]\r\n'.encode(encoding))
    assert learners(sites.load(site), tmp_path) == ["alan", "ada", "grace"]
    add_learners(tmp_path, ["emmy"])
    assert learners(sites.Site(), tmp_path) == ["ada", "grace", "emmy"], "the rest of the list is as before"


def test_a_list_in_another_encoding_is_named(tmp_path: Path) -> None:
    (tmp_path / "learners.txt").write_bytes("ada\n# Größe\n".encode("latin-1"))
    with pytest.raises(CommandError, match=r"learners.txt cannot be read: line 2 is not UTF-8 text: save the file as"):
        learners(sites.Site(), tmp_path)


def test_a_name_that_cannot_be_used_is_refused_with_one_that_can(tmp_path: Path) -> None:
    lines = ["Ada.Lovelace+x@example.org", "Grace", "Élodie Müller", "42", "instructor"]
    (tmp_path / "learners.txt").write_text("\n".join(lines))
    with pytest.raises(CommandError) as caught:
        learners(sites.Site(), tmp_path)
    reasons = str(caught.value).splitlines()[1:]
    assert "'Ada.Lovelace+x@example.org' is an e-mail address, not a name: write ada.lovelace.x (up to" in reasons[0]
    assert "write grace (" in reasons[1] and "write elodie.muller (" in reasons[2]
    assert "write a name such as ada (" in reasons[3] and "'instructor' is an instructor" in reasons[4]


def test_passwords_are_given_once_and_can_be_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    shown: dict[str, str] = {}
    assert give_passwords(path, ["instructor"], shown.__setitem__) == {"instructor"}
    assert re.fullmatch("([a-z]{4}-){3}[a-z]{4}", shown["instructor"])
    assert give_passwords(path, ["instructor"], shown.__setitem__) == set()
    assert have_passwords(path, ["instructor", "ada"]) == {"instructor"}
    assert forget(path, "instructor") and not forget(path, "instructor")


def test_a_password_that_could_not_be_shown_is_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "passwords"
    shown: dict[str, str] = {}

    def interrupted(name: str, password: str) -> None:
        if name == "second":
            raise KeyboardInterrupt
        shown[name] = password

    with pytest.raises(KeyboardInterrupt):
        give_passwords(path, ["first", "second"], interrupted)
    assert have_passwords(path, ["first", "second"]) == set(shown) == {"first"}
    renew_password(path, "first", shown.__setitem__)
    with dbm.open(str(path)) as passwords:
        assert bcrypt.checkpw(shown["first"].encode(), passwords["first"])


def test_check_reports_what_is_valid_and_an_address_that_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    classroom = small_classroom(tmp_path)
    monkeypatch.setenv("LABKIT_ROOT", str(tmp_path))
    check.main(classroom.site)
    printed = capsys.readouterr().out
    assert "the settings are valid" in printed and "1 instructors, 2 learners" in printed
    classroom.site.write_text('[hub]\naddress = "http://192.0.2.1:8000"\n')
    assert check.main(classroom.site) == 1
    printed = capsys.readouterr().out
    assert "missing: the hub cannot listen at http://192.0.2.1:8000" in printed and "or 0.0.0.0 for all" in printed
    with socket.create_server(("127.0.0.1", 0)) as taken:
        classroom.site.write_text(f'[hub]\naddress = "http://127.0.0.1:{taken.getsockname()[1]}"\n')
        assert check.main(classroom.site) == 1
    assert "another program listens there: end it, or choose another port in [hub] address" in capsys.readouterr().out


def test_a_certificate_that_cannot_be_used_is_named_with_the_reason(tmp_path: Path) -> None:
    for name in ("one", "another"):
        (tmp_path / name).mkdir()
    needs_packages("openssl")
    one, another = (small_classroom(tmp_path / name) for name in ("one", "another"))
    for classroom in (one, another):
        classroom.use_tls("IP:127.0.0.1")

    def problems(certificate: Path, key: Path) -> list[str]:
        hub = sites.Hub(address="https://127.0.0.1", certificate=str(certificate), key=str(key))
        return list(requirements._certificate(sites.Site(hub=hub)))

    key = one.root / "hub.key"
    assert problems(one.certificate, key) == []
    (absent,) = problems(tmp_path / "none.pem", key)
    assert f"the certificate {tmp_path}/none.pem of [hub] is not there" in absent
    for certificate in (another.certificate, one.site):
        (problem,) = problems(certificate, key)
        assert f"{certificate} and {key} of [hub] are no certificate with its key" in problem


def test_a_classroom_s_folder_that_is_read_only_is_reported(tmp_path: Path) -> None:
    classroom = small_classroom(tmp_path / "lab")
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o555)
    classroom.site.write_text(f'[hub]\nfolder = "{kept}/in/it"\n')
    # root may write to folders of any mode
    view = [] if os.geteuid() else [bwrap(), "--dev-bind", "/", "/", "--ro-bind", str(kept), str(kept)]
    hub = [*view, sys.executable, "-P", "-m", "labkit", "hub", "--site", str(classroom.site)]
    done = subprocess.run(hub, env=classroom.environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
    assert done.stderr.startswith("labkit: the hub cannot run here:\n")
    assert f"  the classroom is kept in {kept}/in/it, but {kept} cannot be written to: " in done.stderr


@pytest.mark.parametrize("filters", [True, False], ids=["filters", "Python before 3.11.4"])
def test_a_backup_is_restored_on_a_machine_without_a_classroom(
    filters: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not filters:
        monkeypatch.delattr(tarfile, "tar_filter", raising=False)
    classroom = small_classroom(tmp_path)
    folders = Folders(classroom.folder, tmp_path / "running", "small-course")
    folders.running.mkdir()
    folders.prepare()
    folders.prepare_learner("ada")
    (folders.home("ada") / "notes.txt").write_text("mine")
    (folders.home("ada") / "link").symlink_to("/etc/passwd")
    (folders.in_exchange("inbound", "ada") / "submission").mkdir()
    give_passwords(folders.hub / "passwords", ["instructor"], lambda name, password: None)
    (folders.hub / "other.db").write_bytes(b"a dbm")  # passwords are in one of a kind that Python chooses
    gradebook = sqlite3.connect(folders.course / "gradebook.db")
    gradebook.execute("create table marks (learner text, score real)")
    gradebook.execute("insert into marks values ('ada', 3)")
    gradebook.commit()
    gradebook.execute("insert into marks values ('grace', 2)")  # not committed: another program writes meanwhile
    archive = tmp_path / "backup.tar.gz"
    text = classroom.site.read_text()
    classroom.site.write_text(text.replace("[hub]", f'[hub]\nfolder = "{classroom.folder}"'))
    assert backup(classroom.site, archive) == 0
    assert archive.stat().st_mode & 0o077 == 0
    with pytest.raises(CommandError, match="is not empty"):
        restore(classroom.site, archive)
    with pytest.raises(CommandError, match="is in the classroom's folder"):
        backup(classroom.site, classroom.folder / "backup.tar.gz")

    fresh = tmp_path / "fresh"
    classroom.site.write_text(text.replace("[hub]", f'[hub]\nfolder = "{fresh}"'))
    assert restore(classroom.site, archive) == 0
    home = fresh / "homes/ada"
    assert (home / "notes.txt").read_text() == "mine" and os.readlink(home / "link") == "/etc/passwd"
    assert home.stat().st_uid == folders.home("ada").stat().st_uid
    assert (fresh / "exchange/small-course/inbound/ada/submission").is_dir()
    assert have_passwords(fresh / "hub/passwords", ["instructor"]) == {"instructor"}
    assert (fresh / "hub/other.db").read_bytes() == b"a dbm"
    restored = sqlite3.connect(fresh / "course/gradebook.db")
    assert restored.execute("select * from marks").fetchall() == [("ada", 3.0)]
