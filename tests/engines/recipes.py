"""The code of a recipe, as its page shows it: what is tested is what users copy."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[2] / "docs" / "engines"


def recipe(engine: str) -> dict[str, Any]:
    """The names that the first block of code of that engine's page defines."""
    page = PAGES / f"{engine}.md"
    found = re.search(r"```python\n(.*?)```", page.read_text(), re.S)
    assert found, f"{page.name} has lost its code"
    names: dict[str, Any] = {"__name__": f"recipe_{engine}"}
    exec(compile(found[1], page, "exec"), names)
    return names
