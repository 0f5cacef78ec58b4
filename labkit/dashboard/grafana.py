"""A dashboard for Grafana of what `PrometheusSink` exports, made with Grafana's own SDK.

    labkit dashboard --grafana > training.json      # then in Grafana: Dashboards, Import

It asks for a Prometheus data source, and chooses among the jobs that Prometheus scrapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from labkit.installing import how_to_install

if TYPE_CHECKING:
    from grafana_foundation_sdk.builders.timeseries import Panel

OWN_SECONDS = "(training_step_time_seconds{job=~'$job'} - communication_time_seconds{job=~'$job'})"
"""Own seconds of each rank, without communication: in it, all others wait for a slow rank."""


def grafana_dashboard() -> str:
    """Return the dashboard as JSON. Raises ImportError without the package grafana-foundation-sdk."""
    try:
        from grafana_foundation_sdk.builders import dashboard
    except ImportError:
        how = how_to_install("grafana-foundation-sdk", "learning")
        raise ImportError(f"the dashboard needs the package grafana-foundation-sdk: {how}") from None
    from grafana_foundation_sdk.cog.encoder import JSONEncoder

    source = dashboard.DatasourceVariable("source").label("Data source").type("prometheus")
    job = (
        dashboard.QueryVariable("job")
        .label("Job")
        .datasource(_source())
        .query("label_values(training_step_time_seconds, job)")
        .include_all(True)
        .all_value(".*")
        .multi(True)
    )
    page = (
        dashboard.Dashboard("Distributed training")
        .uid("labkit-training")
        .tags(["labkit"])
        .time("now-30m", "now")
        .refresh("10s")
        .with_variable(source)
        .with_variable(job)
    )
    for panel in _panels():
        page = page.with_panel(panel)
    return JSONEncoder(sort_keys=True, indent=2).encode(page.build())


def _panels() -> list[Panel]:
    step, communication, wait = (
        f"avg({name}{{job=~'$job'}})"
        for name in ("training_step_time_seconds", "communication_time_seconds", "input_time_seconds")
    )
    samples, memory = "training_samples_per_second{job=~'$job'}", "gpu_memory_allocated_bytes{job=~'$job'}"
    return [
        _panel("Throughput", "cps", {"samples per second": f"sum({samples})"}),
        _panel("Loss", "short", {"mean of all ranks": "avg(training_loss{job=~'$job'})"}),
        _panel(
            "Where a step's time goes",
            "s",
            {"compute": f"{step} - {communication} - {wait}", "communication": communication, "input": wait},
            stacked=True,
        ),
        _panel(
            "Compute and input over the ranks' median",
            "percentunit",
            {"rank {{rank}}": f"{OWN_SECONDS} / scalar(quantile(0.5, {OWN_SECONDS})) - 1"},
        ),
        _panel("Memory", "bytes", {"largest": f"max({memory})", "median": f"quantile(0.5, {memory})"}),
        _panel("GPU utilization", "percent", {"rank {{rank}}": "gpu_utilization_percent{job=~'$job'}"}),
        _panel("GPU memory in use", "bytes", {"rank {{rank}}": "gpu_memory_used_bytes{job=~'$job'}"}),
        _panel("GPU temperature", "celsius", {"rank {{rank}}": "gpu_temperature_celsius{job=~'$job'}"}),
        _panel(
            "Waiting in 99 % of the calls so far",
            "s",
            {
                "{{operation}}": "histogram_quantile(0.99, sum by (le, operation) "
                "(communication_operation_seconds_bucket{job=~'$job'}))"
            },
        ),
        _panel("Last evaluation", "short", {"{{figure}}": "max by (figure) (evaluation{job=~'$job'})"}),
        _panel(
            # not their increase: a counter that appears with its first alarm has not increased since
            "Alarms so far",
            "short",
            {"{{cause}}, rank {{rank}}": "sum by (cause, rank) (training_alarms_total{job=~'$job'})"},
        ),
    ]


def _panel(title: str, unit: str, queries: dict[str, str], stacked: bool = False) -> Panel:
    """Return one picture, half of the page wide. unit: as Grafana calls it; queries: by the legend's text."""
    from grafana_foundation_sdk.builders.common import StackingConfig, VizLegendOptions
    from grafana_foundation_sdk.builders.prometheus import Dataquery
    from grafana_foundation_sdk.builders.timeseries import Panel
    from grafana_foundation_sdk.models.common import LegendDisplayMode, LegendPlacement, StackingMode

    legend = VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM).show_legend(True)
    panel = Panel().title(title).unit(unit).datasource(_source()).span(12).height(8).legend(legend)
    if stacked:
        panel = panel.stacking(StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(40)
    for letter, (text, query) in zip("ABC", queries.items(), strict=False):
        panel = panel.with_target(Dataquery().ref_id(letter).expr(query).legend_format(text))
    return panel


def _source() -> Any:
    from grafana_foundation_sdk.models.dashboard import DataSourceRef

    return DataSourceRef(type_val="prometheus", uid="${source}")
