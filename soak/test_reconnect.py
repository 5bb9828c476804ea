"""Every figure of docs/reconnect.md, simulated anew: half a minute."""

from pathlib import Path

from benchmarks.herd import Fleet
from benchmarks.reconnect import report

PAGE = Path(__file__).parents[1] / "docs" / "reconnect.md"


def test_the_page_shows_every_table_as_it_is_printed() -> None:
    page = PAGE.read_text()
    for table in report(Fleet()):
        assert table in page
