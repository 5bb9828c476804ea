"""What an adapter says whose engine is not installed."""

import subprocess
import sys

import pytest

from drainmw.sources.extras import extra

ENGINES = {
    "apscheduler": ("apscheduler", "apscheduler"),
    "arq": ("arq", "arq"),
    "celery": ("celery", "celery"),
    "procrastinate": ("procrastinate", "procrastinate"),
    "rq": ("rq", "rq"),
    "rqclock": ("rq", "rq"),
    "taskiq": ("taskiq", "taskiq"),
    "taskiqmemory": ("taskiq", "taskiq"),
    "taskiqowned": ("taskiq", "taskiq"),
    "taskiqscheduler": ("taskiq", "taskiq"),
}


@pytest.mark.parametrize("module", ENGINES)
def test_an_engine_that_is_not_installed_is_named_with_its_extra(module: str) -> None:
    engine, name = ENGINES[module]
    code = f"""
import sys
class Nowhere:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {engine!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)
sys.meta_path.insert(0, Nowhere())
try:
    import drainmw.sources.{module}
except ModuleNotFoundError as exc:
    print(exc.name, exc)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert run.stdout.startswith(f"{engine}")
    assert f"pip install 'drainmw[{name}]'" in run.stdout


def test_what_else_an_import_raises_is_passed_on() -> None:
    with pytest.raises(ImportError, match="half of it"), extra("arq"):
        raise ImportError("half of it")
