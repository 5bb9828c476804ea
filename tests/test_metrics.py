"""The report as OpenMetrics."""

import sys
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from drainmw.contract import METRICS_PATH
from drainmw.testing import ManualClock, ManualSource
from tests.rig import Release, Waiting

pytestmark = pytest.mark.anyio


async def scraped(release: Release) -> dict[tuple[str, ...], float]:
    answer = await release.client.control("GET", METRICS_PATH)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    families = text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


async def test_a_serving_release_shows_every_figure() -> None:
    release = Release(Waiting())
    async with release.call():
        figures = await scraped(release)
    assert figures["drainmw_in_flight", "http"] == 1
    for kind in ("websocket", "jobs", "schedules"):
        assert figures["drainmw_in_flight", kind] == 0
    assert figures["drainmw_phase", "serving"] == 1
    assert figures["drainmw_phase", "draining"] == 0
    assert figures["drainmw_epoch",] == 0
    assert figures["drainmw_admitted_total",] == 1
    assert figures["drainmw_refused_total",] == 0
    assert ("drainmw_remaining_seconds",) not in figures


async def test_a_draining_release_shows_what_is_left() -> None:
    clock = ManualClock()
    release = Release(Waiting(), clock=clock)
    async with release.call():
        await release.client.begin()
        clock.advance(1.5)
        await release.client.get("/")
        figures = await scraped(release)
    assert figures["drainmw_phase", "draining"] == 1
    assert figures["drainmw_remaining_seconds",] == 3.5
    assert figures["drainmw_refused_total",] == 1
    assert figures["drainmw_epoch",] == 1


async def test_an_unknown_counter_has_no_sample() -> None:
    release = Release(count_timeout=0.01)
    release.drain.add_source(ManualSource(blocked=["count"]))
    figures = await scraped(release)
    assert ("drainmw_in_flight", "jobs") not in figures
    assert figures["drainmw_in_flight", "http"] == 0


async def test_without_the_extra_the_answer_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    missing: Any = None
    monkeypatch.setitem(sys.modules, "prometheus_client", missing)
    answer = await Release().client.control("GET", METRICS_PATH)
    assert (answer.status_code, answer.json()["code"]) == (
        501,
        "RUNTIME_METRICS_UNAVAILABLE",
    )
    assert "drainmw[metrics]" in answer.json()["detail"]
