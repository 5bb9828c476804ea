"""How connections end that ask Celery's nodes; who holds one: tests/engines."""

from drainmw.sources.celeryholds import CLOSE_TRIES, close


class Connection:
    """One whose table of queues changes so many times while it is closed."""

    def __init__(self, changes: int) -> None:
        self.changes = changes
        self.closed = 0

    def collect(self) -> None:
        if self.changes:
            self.changes -= 1
            raise RuntimeError("dictionary changed size during iteration")
        self.closed += 1


def test_a_connection_is_closed_though_another_one_opens_meanwhile() -> None:
    connection = Connection(changes=2)
    close(connection)
    assert (connection.changes, connection.closed) == (0, 1)


def test_one_that_cannot_be_closed_is_left() -> None:
    connection = Connection(changes=CLOSE_TRIES + 1)
    close(connection)
    assert (connection.changes, connection.closed) == (1, 0)
