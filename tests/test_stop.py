"""The end of a process that has been told to end."""

from tests.processes import running

LATE = """
import time
from drainmw.stop import end_within

class Late:
    def __del__(self, sleep=time.sleep):
        sleep(0.5)

late = Late()
end_within(0.2)
"""
HANGING = """
import atexit, time
from drainmw.stop import end_within

atexit.register(time.sleep, 60)
end_within(0.2)
"""


def test_who_has_ended_in_time_is_not_killed_while_python_tidies_up() -> None:
    with running("-c", LATE) as process:
        assert process.exit_code() == 0


def test_who_hangs_at_its_exit_is_ended() -> None:
    with running("-c", HANGING) as process:
        assert process.exit_code() == 1
