"""What is exported, and which way imports point."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

import drainmw

HOME = Path(drainmw.__file__).parent

# A module may import from floors below its own, and from its own.
FLOORS = (
    ("errors",),
    ("contract", "location", "bodies"),
    ("text", "core", "settings", "tokens", "socketfile", "sources.base"),
    ("state", "modelstate"),
    ("supervisor", "locks", "slots"),
    ("stores",),
    ("flag", "log", "answers", "interrupt", "reporting", "record"),
    ("sources", "agent", "client"),
    ("tenure",),
    ("owner",),
    ("ownership",),
    ("exchange", "sockets", "policies", "fetching", "inner", "offering", "siblings"),
    ("group", "rollcall", "statement", "walker", "origin", "exporting", "importing"),
    ("course", "handoffs"),
    ("release",),
    ("metrics",),
    ("reading",),
    ("problems",),
    ("statecontrol",),
    ("control",),
    ("siblingapp",),
    ("middleware",),
    ("console", "servelog", "stop", "handing"),
    ("serve",),
    ("crew",),
    ("targets",),
    ("handoffcommand",),
    ("cli",),
    ("__main__",),
)
PURE = (
    "errors",
    "contract",
    "location",
    "bodies",
    "core",
    "text",
    "state",
    "modelstate",
)
IMPURE = {"asyncio", "time", "socket", "threading", "logging", "structlog", "selectors"}

MODULES = {
    ".".join(file.relative_to(HOME).with_suffix("").parts): file
    for file in sorted(HOME.rglob("*.py"))
    if file.name != "__init__.py"
}


def room_of(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or module.startswith(room + ".") for room in rooms)


def floor_of(module: str) -> int:
    """`sources.base` is named before `sources`, so that the lower one is found."""
    for number, rooms in enumerate(FLOORS):
        if room_of(module, rooms):
            return number
    raise AssertionError(f"{module} stands on no floor; put it into FLOORS")


def imports_of(file: Path) -> Iterator[str]:
    """Every module that is imported when it runs, also inside functions."""
    tree = ast.parse(file.read_text())
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if node in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} imports by a relative name"
            assert node.module is not None
            yield node.module
            if node.module == "drainmw":
                yield from (f"drainmw.{alias.name}" for alias in node.names)


def ours(file: Path) -> Iterator[str]:
    for name in imports_of(file):
        if name.startswith("drainmw."):
            yield name.removeprefix("drainmw.")


def test_what_is_exported_is_what_all_names() -> None:
    assert drainmw.__all__ == sorted(drainmw.__all__)
    assert dir(drainmw) == drainmw.__all__
    assert {*drainmw._HOME, "__version__"} == set(drainmw.__all__)


@pytest.mark.parametrize("name", drainmw.__all__)
def test_each_export_can_be_imported_and_is_what_its_home_holds(name: str) -> None:
    value = getattr(drainmw, name)
    if name == "__version__":
        assert version("drainmw") == value
        return
    assert value.__module__ == drainmw._HOME[name]
    assert value.__name__ == name


@pytest.mark.parametrize("name", ["drainmw", "drainmw.sources.queue", "drainmw.cli"])
@pytest.mark.parametrize("has_lock", [True, False])
def test_a_python_without_its_lock_is_refused(name: str, has_lock: bool) -> None:
    """As a free-threaded build is, unless something in it has turned the lock on."""
    program = f"import sys; sys._is_gil_enabled = lambda: {has_lock}; import {name}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True
    )
    assert done.returncode == (0 if has_lock else 1), done.stderr
    assert ("run it with the lock (PYTHON_GIL=1)" in done.stderr) is not has_lock


THEIR_TASKS = {"sources.runner", "sources.taskiq", "sources.tasks"}
"""They start work of the app, or run in the loop of an engine's own process."""


@pytest.mark.parametrize("module", sorted(MODULES.keys() - THEIR_TASKS))
def test_a_task_of_ours_is_started_by_start_task(module: str) -> None:
    """The factory of the app's loop might run it at once."""
    calls = (n for n in ast.walk(ast.parse(MODULES[module].read_text())))
    names = {n.attr for n in calls if isinstance(n, ast.Attribute)}
    assert "create_task" not in names


def test_another_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Drian'"):
        drainmw.Drian  # noqa: B018 the access is the test


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    if module == "testing":
        return
    own = floor_of(module)
    upward = [name for name in ours(MODULES[module]) if floor_of(name) > own]
    assert upward == []


@pytest.mark.parametrize("module", MODULES)
def test_nobody_imports_the_helpers_for_tests(module: str) -> None:
    assert "testing" not in ours(MODULES[module])


@pytest.mark.parametrize("module", [m for m in MODULES if room_of(m, PURE)])
def test_the_pure_rooms_know_no_loop_clock_socket_lock_or_logger(module: str) -> None:
    roots = {name.partition(".")[0] for name in imports_of(MODULES[module])}
    assert roots & IMPURE == set()


def test_the_whole_is_typed_and_says_so() -> None:
    assert (HOME / "py.typed").exists()


@pytest.mark.parametrize("module", [m for m in MODULES if m != "__main__"])
def test_each_module_can_be_imported_first(module: str) -> None:
    if module not in ("tokens", "settings", "text", "client", "testing", "cli"):
        return
    command = [sys.executable, "-c", f"import drainmw.{module}"]
    subprocess.run(command, check=True, timeout=30)
