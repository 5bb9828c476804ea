"""The record of a process that is alone."""

from __future__ import annotations

import os

import pytest

from drainmw.core.drain import Lifecycle, Phase
from drainmw.core.roster import Worker
from drainmw.errors import AlreadyStarted, GroupError, Superseded
from drainmw.record import LocalRecord
from tests.rig import NONCE, OTHER_NONCE, begin_request


def begin(record: LocalRecord, nonce: str = NONCE) -> bool:
    return record.transact(lambda life: life.begin(begin_request(nonce), 1000.0))


def test_a_transition_closes_the_gate_and_counts_generations() -> None:
    gate = [0]
    record = LocalRecord(None, gate)
    assert begin(record) is False
    assert (gate[0], record.read()[0]) == (2, 2)
    record.transact(Lifecycle.close)
    assert gate[0] == 3
    record.transact(lambda life: life.resume(NONCE))
    assert (gate[0], record.read()[1].phase) == (0, Phase.SERVING)


def test_a_transition_that_is_refused_changes_nothing() -> None:
    record = LocalRecord(None, [0])
    begin(record)
    with pytest.raises(AlreadyStarted):
        begin(record, OTHER_NONCE)
    assert (record.read()[0], record.gate[0]) == (2, 2)


def test_a_transition_of_an_older_generation_is_dropped() -> None:
    record = LocalRecord(None, [0])
    generation, _ = record.read()
    begin(record)
    with pytest.raises(Superseded):
        record.transact(Lifecycle.close, only_at=generation)
    assert record.gate[0] == 2


def test_nobody_else_is_there() -> None:
    record = LocalRecord(None, [0])
    record.publish(Worker(1, 0.0, 0.0, 1, settled=True, counts=(0, 0, 0, 0)))
    record.wake()
    record.tell({"blockers": [], "warnings": [], "sources": []})
    assert (record.others(), record.told()) == ([], [])
    assert (record.members(), record.addresses()) == ([os.getpid()], {})


def test_what_was_kept_is_there_until_it_is_forgotten() -> None:
    record = LocalRecord(None, [0])
    record.keep("1-a", b"one")
    record.keep("1-a", b"two")
    assert record.kept("1-a") == b"two"
    for missing in ("1-b", "1-a"):
        with pytest.raises(GroupError, match="what was sealed is gone"):
            record.kept(missing)
        record.forget()
