"""Shows what a server wrote below the report of a test that failed."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.servers.server import Server

SHOWN = 6000  # characters, the last ones


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        fixtures = getattr(item, "funcargs", {}).values()
        for server in {value for value in fixtures if isinstance(value, Server)}:
            output = server.log.read_text(errors="replace")[-SHOWN:]
            report.sections.append((f"output of {server.kind.name}", output))
    return report
