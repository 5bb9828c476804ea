"""The driver of the browser keeps its promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.browser import chromium
from tests.browser.chromium import PROGRAM
from tests.processes import until

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="needs chromium")


def running_in(folder: str) -> list[bytes]:
    """The command lines that name that folder, of processes that run."""
    commands = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            commands.append(process.read_bytes())
        except OSError:  # it has just ended
            continue
    return [command for command in commands if folder.encode() in command]


def test_it_is_ended_with_all_it_started(tmp_path: Path) -> None:
    with chromium.running(tmp_path / "output.log") as browser:
        assert len(running_in(browser.profile)) > 3
    until(lambda: not running_in(browser.profile), "the end of all of it")
    assert not Path(browser.profile).exists()


def test_a_promise_is_waited_for_and_an_exception_is_seen(tmp_path: Path) -> None:
    with chromium.running(tmp_path / "output.log") as browser, browser.page() as page:
        later = "new Promise(done => setTimeout(() => done('later'), 20))"
        assert page.evaluate(later) == "later"
        assert page.exceptions() == []
        page.evaluate("setTimeout(() => { throw new Error('uncaught') }), null")
        [exception] = until(page.exceptions, "the exception")
        assert "uncaught" in str(exception)
        with pytest.raises(AssertionError, match="nowhere"):
            page.evaluate("nowhere")
