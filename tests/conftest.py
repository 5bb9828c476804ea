"""Every test starts without settings from outside, in asyncio."""

import os

import pytest
from hypothesis import HealthCheck, settings

# The same examples every time, on a machine of any speed.
settings.register_profile(
    "tests",
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=None,
)
settings.load_profile("tests")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("DRAINMW_"):
            monkeypatch.delenv(name)
