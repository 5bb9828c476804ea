"""Leases of a Celery worker on Redis, renewed for as long as the worker has them.

There a message that was fetched stays in a hash until it is acknowledged, and its
tag in a sorted set, by the time of the fetch. What is older than the broker's
`visibility_timeout` any worker puts back into its queue: it takes it for the lease
of one that died, though it may run, or wait for its ETA or for a slot. Celery
itself sets that time once.

A tag that has left the set, since it was acknowledged or put back, is not put in
again. The leases of a worker that died grow old, and are put back as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import time
from typing import Any

from drainmw.log import logger
from drainmw.text import failure_text

SHARE = 0.25  # of a lease, after which it is renewed: three attempts may fail
LEAST = 0.05  # seconds between two renewals

Request = Any
"""Celery's `Request`: one message that this worker has leased."""


class Leases:
    """Those of one worker. It is used where the worker's timer is."""

    def __init__(self, consumer: Any, leased: Callable[[], Iterable[Request]]) -> None:
        """`leased` tells the requests that are not to go to anybody else."""
        self._consumer = consumer
        self._leased = leased
        self._timer: Any = None

    def start(self) -> None:
        """Renew from now on; once more after each loss of the connection.

        Does nothing where the broker has no such leases: RabbitMQ, for one, knows
        by the connection that a worker lives.
        """
        self.stop()
        channel = self._consumer.task_consumer.channel
        kind = self._consumer.connection.transport.driver_type
        if kind == "redis" and channel.ack_emulation:
            pause = max(LEAST, SHARE * channel.visibility_timeout)
            self._timer = self._consumer.timer.call_repeatedly(pause, self.renew)

    def stop(self) -> None:
        """Renew no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def renew(self) -> None:
        """Make all leases as if they had been fetched now."""
        held = [request for request in self._leased() if not request.acknowledged]
        tags = {request.message.delivery_tag: time() for request in held}
        if not tags:
            return
        channel = self._consumer.task_consumer.channel
        try:
            with channel.conn_or_acquire() as redis:
                redis.zadd(channel.unacked_index_key, tags, xx=True)
        except channel.connection_errors as exc:  # the worker connects anew by itself
            logger().warning(
                "leases not renewed", leases=len(tags), error=failure_text(exc)
            )
