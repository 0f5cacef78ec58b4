"""One run on the cluster, from the creation of its objects to their deletion."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

from labkit.clusters import gpu_ledger
from labkit.clusters.agent import LaunchPlan, Nodes, NodesLost
from labkit.clusters.cluster import OnOutput, OnState, State
from labkit.clusters.kubernetes import manifest, pods
from labkit.clusters.kubernetes.api import Api
from labkit.clusters.kubernetes.errors import KubernetesError
from labkit.clusters.kubernetes.following import (
    ApiTrouble,
    Follower,
    FollowFailure,
    Happening,
    LogEnd,
    LogLine,
    PodChange,
    RunGone,
)
from labkit.clusters.kubernetes.manifest import Object
from labkit.clusters.kubernetes.sessions import session
from labkit.clusters.run import Run
from labkit.transport import frames, lines

_LAST_WORDS = 12


class Submission:
    """Objects on the cluster within a `with` block: its end deletes all of them, whatever happens."""

    def __init__(self, api: Api, owner: Object, others: Sequence[Object], plan: LaunchPlan) -> None:
        """owner: the Job or TrainJob; the others are deleted with it. Raises `KubernetesError` if one is rejected."""
        self._api = api
        self._plan = plan
        self._paths = [api.path_of(each) for each in [owner, *others]]
        self._name: str = owner["metadata"]["name"]
        is_train_job = owner["kind"] == "TrainJob"
        self._container = "node" if is_train_job else manifest.CONTAINER
        of_set = f"jobset.sigs.k8s.io/jobset-name={self._name},jobset.sigs.k8s.io/replicatedjob-name=node"
        self._selector = of_set if is_train_job else f"job-name={self._name}"
        self._jobs = [self._name, f"{self._name}-node-0"] if is_train_job else [self._name]
        self._follower: Follower | None = None
        self._pods: dict[int, Object] = {}
        self._last_words: dict[int, deque[str]] = {}
        self._heard: set[int] = set()
        writers = [self._obey] * plan.nnodes
        self._nodes = Nodes([f"pod {i}" for i in range(plan.nnodes)], writers)
        self._others = others
        self._owner = owner

    def __enter__(self) -> Submission:
        session.remember(self._api, self._paths)
        try:
            for thing in self._others:
                self._api.create(thing)
            owner = self._api.create(self._owner)
            for thing in self._others:
                self._api.patch(self._api.path_of(thing), manifest.owned_by(owner))
        except BaseException:
            self._delete()
            raise
        self._follower = Follower(self._api, self._selector, self._jobs)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._follower:
            self._follower.close()
        self._delete()

    def keep_alive(self, seconds: float) -> None:
        """Show the pods at regular intervals that this program still waits for them."""
        assert self._follower
        self._follower.keep_alive(self._name, seconds)

    def follow(self, on_output: OnOutput | None, on_state: OnState | None) -> Run:
        """Wait for the pods, then for the ranks. Raises `KubernetesError` if the ranks never begin."""
        tell = on_state or (lambda state: None)
        assert self._follower
        tell(State("queued", self._summary()))
        while len(self._heard) < self._plan.nnodes:
            self._take(self._follower.happenings.get(), tell, begun=False)
        over = threading.Event()
        # later events are for `nodes`, which reads them in this thread
        threading.Thread(target=self._pump, args=(tell, over), name="labkit-kubernetes", daemon=True).start()
        try:
            return self._explained(self._nodes.run(self._plan, on_output, on_state))
        except NodesLost as error:
            raise KubernetesError(str(error)) from None
        except lines.LineError as error:
            raise KubernetesError(
                f"a part of a pod's log is gone: {error}. Nodes keep the last 10 to 50 MB of each log: print less, and "
                "return less from a cell"
            ) from None
        finally:
            over.set()
            self._follower.happenings.put(ApiTrouble(""))

    def _explained(self, run: Run) -> Run:
        """Return the run; if pods were ended from outside, as a course's hub does, with the reason."""
        if (
            run.ok
            or run.stopped
            or any(result.exit or (result.error and not result.error.consequence) for result in run.ranks)
        ):
            return run
        return replace(run, stopped=self._why_ended(self._pods[min(self._pods)]))

    def _why_ended(self, pod: Object) -> str:
        return gpu_ledger.why(self._name) or pods.how_it_ended(pod)

    def _pump(self, tell: OnState, over: threading.Event) -> None:
        assert self._follower
        while True:
            happening = self._follower.happenings.get()
            if over.is_set():
                return
            self._take(happening, tell, begun=True)

    def _take(self, happening: Happening, tell: OnState, begun: bool) -> None:
        """Process an event. Before the ranks have begun, the end of a node raises `KubernetesError`."""
        match happening:
            case LogLine(node, text):
                if text.startswith('{"kind": '):
                    self._heard.add(node)
                    self._nodes.feed(node, text)
                elif text not in (words := self._last_words.setdefault(node, deque(maxlen=_LAST_WORDS))):
                    # a log that is resumed repeats some lines
                    words.append(text)
            case PodChange(pod):
                self._take_pod(pod, tell, begun)
            case LogEnd(node):
                self._end(node, begun)
            case ApiTrouble(text):
                tell(State("running", text) if begun else State("queued", text or self._summary()))
            case RunGone(text):
                if not begun:  # else its pods' logs tell how it ends
                    why = gpu_ledger.why(self._name) or text
                    raise KubernetesError(f"the run was ended before its ranks began: {why}")
            case FollowFailure(error):
                if not begun:
                    raise error
                for node in range(self._plan.nnodes):
                    self._nodes.lost(node, str(error))

    def _take_pod(self, pod: Object, tell: OnState, begun: bool) -> None:
        node = pods.node_of(pod)
        if node is None or node >= self._plan.nnodes:
            return
        known = self._pods.get(node)
        if known and known["metadata"]["uid"] != pod["metadata"]["uid"]:  # a retry by the Job: our pod has failed
            return
        self._pods[node] = pod
        assert self._follower
        phase = pods.phase(pod)
        if not begun and (why := pods.why_never(pod)):
            raise KubernetesError(f"pod {node} of {self._plan.nnodes} cannot start: {why}")
        if phase != "pending":
            self._follower.follow_log(node, pod["metadata"]["name"], self._container)
        if phase in ("succeeded", "failed"):
            self._follower.pod_ended(node)
        if not begun:
            waiting = any(pods.phase(each) == "pending" for each in self._pods.values())
            waiting = waiting or len(self._pods) < self._plan.nnodes
            tell(State("queued" if waiting else "starting", self._summary()))

    def _summary(self) -> str:
        text = pods.summary(self._pods.values(), self._plan.nnodes)
        gpus = gpu_ledger.in_words(self._name)
        return f"{text}; {gpus}" if gpus else text

    def _end(self, node: int, begun: bool) -> None:
        """End of a node's log: no more lines will come from it."""
        pod = self._pods[node]
        words = "\n".join(self._last_words.get(node, ()))
        how = self._why_ended(pod) + (f"; the last that it printed:\n{words}" if words else "")
        if node not in self._heard:
            if "No module named" in words:
                how += "\nIs this labkit, with torch, in the image? docs/kubernetes.md says how to make one"
            raise KubernetesError(f"node {node} ended before its ranks began: {how}")
        self._nodes.lost(node, how)

    def _obey(self, text: str) -> None:
        """Handle lines of `Nodes` for an agent. Pods accept no input: they can only be ended."""
        fields, data = lines.read(text) or ({}, b"")
        ending = fields.get("kind") == "stop"
        if fields.get("kind") == "frames":
            ending = any(header.get("kind") == "end" for header, _ in frames.Decoder(1 << 20).feed(data))
        if ending:
            # they get SIGTERM, and report how their ranks ended
            with contextlib.suppress(KubernetesError):
                self._api.delete(self._api.path_of(self._owner))

    def _delete(self) -> None:
        for path in self._paths:
            # objects that cannot be deleted now stay recorded
            with contextlib.suppress(KubernetesError):
                self._api.delete(path)
                session.forget(self._api, [path])
