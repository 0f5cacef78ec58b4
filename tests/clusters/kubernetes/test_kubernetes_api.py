"""The only client of the API: how it logs in, and answers that are not simply those that it has asked for."""

from __future__ import annotations

import datetime
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kubernetes.config import incluster_config
from standin_cluster import StandInCluster, make_certificate
from waiting import BROKEN_SECONDS

from labkit.clusters.kubernetes import manifest
from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.errors import ApiRefused, ApiUnreachable
from labkit.clusters.kubernetes.following import Follower, PodChange
from labkit.clusters.kubernetes.login import as_person, as_service
from labkit.clusters.kubernetes.manifest import Names

SECRET = manifest.secret(Names("labkit-0000000001", "lab", "0123456789abcdef"), b"x")
REJECTED = json.dumps({"kind": "Status", "message": "too many requests"})


@pytest.fixture
def api(standin: StandInCluster) -> Api:
    """The API alone, as the learner."""
    standin.controllers.close()
    standin.kubelet.close()
    return Api(as_person())


def test_a_certificate_of_another_authority(standin: StandInCluster, api: Api) -> None:
    make_certificate(standin.certificate)  # of another key
    with pytest.raises(ApiUnreachable, match=r"does not answer: .*certificate verify failed") as raised:
        Api(as_person()).get("/version")
    assert "certificate verify failed" in raised.value.reason


def test_a_service_account_s_token_is_read_again(
    standin: StandInCluster, api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token, now = tmp_path / "token", [datetime.datetime(2026, 1, 1)]
    token.write_text("a-token")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(token))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(standin.certificate))
    clock = SimpleNamespace(timedelta=datetime.timedelta, datetime=SimpleNamespace(now=lambda: now[0]))
    monkeypatch.setattr(incluster_config, "datetime", clock)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", standin.api.url.rpartition(":")[2])
    standin.write_kubeconfig(standin.api.url, token="the-kubeconfig-s-token")
    person, service = Api(as_person()), Api(as_service(), "lab")
    pods = service.path("v1", "pods")
    assert service.get(pods)["items"] == []
    # the kubelet writes a new one long before the old one expires
    standin.api.token = "a-new-token"
    token.write_text("a-new-token")
    now[0] += datetime.timedelta(minutes=2)
    assert service.get(pods)["items"] == []
    with pytest.raises(ApiRefused, match="does not know you"):  # a person's kubeconfig goes first
        person.get(pods)


def test_a_login_program_is_run_again_when_its_token_has_expired(standin: StandInCluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("a-token")
    program = f"""
import json
status = {{"token": open({str(token)!r}).read(), "expirationTimestamp": "2020-01-01T00:00:00Z"}}
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}}))
"""
    version = "client.authentication.k8s.io/v1"
    how = {"apiVersion": version, "command": sys.executable, "args": ["-S", "-c", program], "interactiveMode": "Never"}
    standin.write_kubeconfig(standin.api.url, exec=how)
    api = Api(as_person())
    assert "stand-in" in api.get("/version")["gitVersion"]
    standin.api.token = "a-new-token"
    token.write_text("a-new-token")
    assert "stand-in" in api.get("/version")["gitVersion"]


def test_a_busy_api_is_asked_again_when_it_says(standin: StandInCluster, api: Api) -> None:
    later = (429, {"Retry-After": "0"}, REJECTED)
    standin.api.rejections["create", "secrets"] = [later, later]
    assert api.create(SECRET)["metadata"]["name"] == SECRET["metadata"]["name"]
    assert standin.api.rejections["create", "secrets"] == []


def test_an_api_that_stays_busy_is_asked_a_few_times(standin: StandInCluster, api: Api) -> None:
    standin.api.rejections["create", "secrets"] = left = [(429, {"Retry-After": "0"}, REJECTED)] * 9
    with pytest.raises(ApiRefused, match="the cluster refuses: too many requests") as raised:
        api.create(SECRET)
    assert (raised.value.status, len(left)) == (429, 3)


def test_who_has_asked_too_much_is_not_made_to_wait(standin: StandInCluster, api: Api) -> None:
    """As a course's hub answers a learner with too many runs: without a time."""
    standin.api.rejections["create", "secrets"] = left = [(429, {}, REJECTED)] * 2
    standin.api.rejections["list", "pods"] = [(429, {}, REJECTED)]
    with pytest.raises(ApiRefused, match="the cluster refuses: too many requests"):
        api.create(SECRET)
    assert len(left) == 1
    with pytest.raises(ApiUnreachable, match="is not well: too many requests"):
        api.get(api.path("v1", "pods"))


def test_a_name_that_is_taken(api: Api) -> None:
    api.create(SECRET)
    with pytest.raises(
        ApiRefused, match=r"the cluster refuses: secrets \"labkit-0000000001\" already exists"
    ) as raised:
        api.create(SECRET)
    assert raised.value.status == 409


def test_an_answer_that_breaks_off(standin: StandInCluster, api: Api) -> None:
    standin.api.cut_answers_after = [10]
    with pytest.raises(ApiUnreachable, match="has stopped answering"):
        api.get(api.path("v1", "pods"))
    assert api.get(api.path("v1", "pods"))["items"] == []


def test_a_page_that_is_no_answer_of_the_api(standin: StandInCluster, api: Api) -> None:
    standin.api.rejections["list", "pods"] = [(200, {"Content-Type": "text/html"}, "<h1>Please log in</h1>")]
    with pytest.raises(ApiUnreachable, match="is not well: <h1>Please log in"):
        api.get(api.path("v1", "pods"))


def add_pod(standin: StandInCluster, number: int) -> None:
    labels = {"job-name": "labkit-0000000001"}
    standin.store.create("pods", "lab", {"metadata": {"name": f"pod-{number}", "labels": labels}, "status": {}})


def next_pod(follower: Follower) -> tuple[str, bool]:
    """Return the name of the pod that has changed, and whether it is gone."""
    happening = follower.happenings.get(timeout=BROKEN_SECONDS)
    assert isinstance(happening, PodChange), happening
    pod: Any = happening.pod
    return pod["metadata"]["name"], "deletionTimestamp" in pod["metadata"]


def test_a_watch_that_breaks_misses_nothing(standin: StandInCluster, api: Api) -> None:
    add_pod(standin, 0)
    standin.api.cut_watches_after = [1]
    follower = Follower(api, "job-name=labkit-0000000001", [])
    assert next_pod(follower) == ("pod-0", False)
    add_pod(standin, 1)
    assert next_pod(follower) == ("pod-1", False)
    # half of this event arrives before the connection breaks
    standin.store.delete("pods", "lab", "pod-0", now_at_once=True)
    assert next_pod(follower) == ("pod-0", True)
    follower.close()


def test_a_watch_of_a_version_that_is_too_old_begins_again(standin: StandInCluster, api: Api) -> None:
    gone = json.dumps({"kind": "Status", "message": "too old resource version: 1 (2)", "code": 410})
    standin.api.rejections["watch", "pods"] = [(410, {}, gone)]
    follower = Follower(api, "job-name=labkit-0000000001", [])
    add_pod(standin, 0)
    assert next_pod(follower) == ("pod-0", False)
    follower.close()
