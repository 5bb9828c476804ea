"""`Drain.report()` in the OpenMetrics format, by the Prometheus client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from drainmw.contract import Report
from drainmw.core.drain import Phase
from drainmw.core.heartbeat import OVERLAP
from drainmw.errors import Misuse

if TYPE_CHECKING:
    from prometheus_client.core import Metric

MEDIA_TYPE = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class MetricsUnavailable(Misuse):
    """Raised when the client library of the `metrics` extra is not installed."""

    code = "RUNTIME_METRICS_UNAVAILABLE"

    def __str__(self) -> str:
        return "metrics need the extra drainmw[metrics]"


def render(report: Report) -> bytes:
    """The report as OpenMetrics text. An unknown counter has no sample.

    Raises:
        MetricsUnavailable: The client library is not installed.
    """
    try:
        from prometheus_client import CollectorRegistry
        from prometheus_client.openmetrics.exposition import generate_latest
    except ImportError:
        raise MetricsUnavailable from None
    registry = CollectorRegistry()
    registry.register(_Collector(report))
    text: bytes = generate_latest(registry)  # type: ignore[no-untyped-call]  # no types there
    return text


class _Collector:
    def __init__(self, report: Report) -> None:
        self._report = report

    def collect(self) -> Iterator[Metric]:
        """Every figure of the report."""
        from prometheus_client.core import (
            CounterMetricFamily,
            GaugeMetricFamily,
            StateSetMetricFamily,
        )

        report = self._report
        in_flight = GaugeMetricFamily(
            "drainmw_in_flight", "Work in flight, by kind.", labels=["kind"]
        )
        for kind, number in report["inFlight"].items():
            if number is not None:
                in_flight.add_metric([kind], number)
        yield in_flight
        phases = {str(phase): phase == report["phase"] for phase in Phase}
        yield StateSetMetricFamily(
            "drainmw_phase", "Where this release stands.", value=phases
        )
        yield GaugeMetricFamily(
            "drainmw_epoch", "Begins and resumes so far.", value=report["epoch"]
        )
        yield CounterMetricFamily(
            "drainmw_admitted", "Work admitted.", value=report["admittedTotal"]
        )
        yield CounterMetricFamily(
            "drainmw_refused", "Work refused.", value=report["refusedTotal"]
        )
        yield GaugeMetricFamily(
            "drainmw_schedule_overlaps",
            "Names whose schedules are run by several instances.",
            value=sum(text.startswith(OVERLAP) for text in report["warnings"]),
        )
        remaining = report["remainingMs"]
        if remaining is not None:
            yield GaugeMetricFamily(
                "drainmw_remaining_seconds",
                "Until the deadline of the drain.",
                value=remaining / 1000,
            )
