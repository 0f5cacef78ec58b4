"""Sink for Prometheus: gauges and histograms that it scrapes from each rank's port."""

from __future__ import annotations

import threading
from typing import Any

from labkit import page_server
from labkit.course.phase4_production.monitoring.given.records import OPERATION_BOUNDS, Alarm, Evaluation, StepRecord
from labkit.installing import how_to_install
from labkit.page_server import Anyone, Page, PageServer, SameUser


class PrometheusSink:
    """Shows the latest step of this rank under http://HOST:PORT/metrics, with the label `rank`.

    port: 0 chooses a free one, `sink.port`; None serves nothing, as where an application serves `registry` itself.
    address: where it listens. On `127.0.0.1` it answers programs of the same user and of root on this machine alone; on
    any other, `0.0.0.0` for all interfaces, everyone who reaches it.
    Raises ImportError without the package prometheus-client.
    """

    def __init__(
        self, rank: int, port: int | None = None, registry: Any = None, address: str = page_server.LOOPBACK
    ) -> None:
        try:
            import prometheus_client as client
        except ImportError:
            how = how_to_install("prometheus-client", "ranks")
            raise ImportError(f"PrometheusSink needs the package prometheus-client: {how}") from None
        self.registry = registry or client.CollectorRegistry()

        def gauge(name: str, text: str) -> Any:
            return client.Gauge(name, text, ["rank"], registry=self.registry).labels(str(rank))

        self._rank = str(rank)
        self._throughput = gauge("training_samples_per_second", "Samples per second of this rank")
        self._step = gauge("training_step_time_seconds", "Time of the last step")
        self._memory = gauge("gpu_memory_allocated_bytes", "Memory of this rank's tensors")
        self._communication = gauge("communication_time_seconds", "Time of the last step's communication")
        self._input = gauge("input_time_seconds", "Time that the last step waited for input")
        self._loss = gauge("training_loss", "Loss of the last step")
        texts = {
            "gpu_utilization_percent": "Utilization of this rank's GPU, by NVML",
            "gpu_memory_used_bytes": "Memory of this rank's GPU in use, by NVML",
            "gpu_temperature_celsius": "Temperature of this rank's GPU, by NVML",
        }
        self._gpu = [client.Gauge(name, text, ["rank"], registry=self.registry) for name, text in texts.items()]
        self._operations = client.Histogram(
            "communication_operation_seconds",
            "Seconds that this rank waited in a call of torch.distributed",
            ["operation", "rank"],
            registry=self.registry,
            buckets=OPERATION_BOUNDS,
        )
        self._evaluation = client.Gauge(
            "evaluation", "Figures of the last evaluation", ["figure", "rank"], registry=self.registry
        )
        self._alarms = client.Counter("training_alarms", "Alarms", ["cause", "rank"], registry=self.registry)
        self._server = None
        if port is not None:
            access = SameUser() if address == page_server.LOOPBACK else Anyone()
            self._server = PageServer(self._find, access, port, address)
            self.port = self._server.server_port
            threading.Thread(target=self._server.serve_forever, name="labkit prometheus", daemon=True).start()

    def _find(self, path: str) -> Page | None:
        from prometheus_client import exposition

        if path not in ("/", "/metrics"):
            return None
        return Page(exposition.generate_latest(self.registry), exposition.CONTENT_TYPE_LATEST)

    def step(self, record: StepRecord) -> None:
        self._throughput.set(record.samples_per_second)
        self._step.set(record.step_seconds)
        self._memory.set(record.memory_bytes)
        self._communication.set(record.communication_seconds)
        self._input.set(record.input_seconds)
        self._loss.set(record.loss)
        for gauge, value in zip(
            self._gpu, (record.gpu_percent, record.gpu_memory_bytes, record.gpu_celsius), strict=True
        ):
            if value is not None:
                gauge.labels(self._rank).set(value)
        for name, calls in (record.operations or {}).items():
            histogram = self._operations.labels(name, self._rank)
            for seconds in calls:
                histogram.observe(seconds)

    def evaluation(self, evaluation: Evaluation) -> None:
        for name, value in evaluation.figures.items():
            self._evaluation.labels(name, self._rank).set(value)

    def alarm(self, alarm: Alarm) -> None:
        self._alarms.labels(alarm.cause, str(alarm.rank)).inc()

    def close(self) -> None:
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()
