"""The tests fail if the product lies: each lie is told to them in a copy.

A mutation is a replacement in the source. It is applied to a copy of the
package, against which the fast tests are run in a process of their own: they
must fail. The copy without a mutation must pass.
"""

import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import drainmw
from tests.forks import Forks, forks

HOME = Path(drainmw.__file__).parent

LEDGER = ("tests/core/test_ledger.py",)
ORDERS = ("tests/core/test_interleavings.py", "-k", "whole_drain")
PHASES = ("tests/core/test_drain.py",)
RELEASE = ("tests/test_release.py",)
VECTORS = ("tests/test_vectors.py",)
MIDDLEWARE = ("tests/test_middleware.py",)
SPREAD = ("tests/core/test_spread.py",)
POLICIES = ("tests/test_policies.py",)
INTERRUPT = ("tests/test_interrupt.py",)
EXCHANGE = ("tests/test_exchange.py",)
CANONICAL = ("tests/core/test_canonical.py",)
STATE_VECTORS = ("tests/test_state_vectors.py",)
HANDOFF = ("tests/core/test_handoff.py",)
ORIGIN = ("tests/test_origin.py::test_elsewhere_nothing_is_proven",)
_OF_SEALED = "test_what_is_sealed_goes_out_the_same_whatever_the_app_does"
SEALED = (f"tests/test_exporting.py::{_OF_SEALED}",)
_OF_LATE = "test_an_import_that_goes_on_after_its_deadline_is_undone_when_it_ends"
LATE = (f"tests/test_importing.py::{_OF_LATE}",)


@dataclass(frozen=True)
class Lie:
    """What is made wrong, and the tests that have to notice."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


LIES = (
    Lie(
        "a begin does not close the gate",
        "core/drain.py",
        "Phase.DRAINING: Gate.DRAINING,",
        "Phase.DRAINING: Gate.OPEN,",
        PHASES,
    ),
    Lie(
        "nobody sets the gate",
        "record.py",
        "self.gate[0] = self._lifecycle.gate",
        "pass",
        VECTORS,
    ),
    Lie(
        "requests are not waited for",
        "core/ledger.py",
        "return not any(self.counts().values())",
        "return True",
        RELEASE,
    ),
    Lie(
        "sources are not waited for",
        "course.py",
        'await together(self._requests_idle(), holds.settled("clock", "pull"))',
        "await together(self._requests_idle())",
        VECTORS,
    ),
    Lie(
        "a release is drained whatever the counters say",
        "core/drain.py",
        "elif any(counts.values()):",
        "elif False:",
        PHASES,
    ),
    Lie(
        "what is unknown is zero",
        "sources/counting.py",
        "    if unknown:\n        why",
        "    if False:\n        why",
        RELEASE,
    ),
    Lie(
        "what is not valid is zero",
        "sources/counting.py",
        "    except CountersInvalid as exc:\n        return Seen(entry, None, exc)",
        "    except CountersInvalid:\n        return Seen(entry, Counts())",
        RELEASE,
    ),
    Lie(
        "a release decrements blindly",
        "core/ledger.py",
        "            tickets.pop(ticket, None)",
        "            tickets and tickets.popitem()",
        LEDGER,
    ),
    Lie(
        "a second release has effect",
        "core/ledger.py",
        "            tickets.pop(ticket, None)",
        "            if tickets.pop(ticket, 0) == 0:\n"
        "                self.spare.append(ticket)",
        LEDGER,
    ),
    Lie(
        "a ticket is put back twice",
        "core/ledger.py",
        "        self.spare.append(ticket)\n",
        "        self.spare.append(ticket)\n        self.spare.append(ticket)\n",
        LEDGER,
    ),
    Lie(
        "no second look at the gate of the other paths",
        "core/ledger.py",
        "        if gate[0] > at_most:\n            self.release(ticket)",
        "        if False:\n            self.release(ticket)",
        ORDERS,
    ),
    Lie(
        "no second look at the gate of the fast path",
        "middleware.py",
        "        if gate[0]:\n            ledger.put_back(ticket)",
        "        if False:\n            ledger.put_back(ticket)",
        ORDERS,
    ),
    Lie(
        "the pool is read before the spare tickets",
        "core/ledger.py",
        "        spare = len(self.spare)\n"
        "        fast = max(0, len(self.pool) - spare)",
        "        pool = len(self.pool)\n        fast = max(0, pool - len(self.spare))",
        LEDGER,
    ),
    Lie(
        "nobody is woken by the last request",
        "middleware.py",
        "                if gate[0]:\n                    ledger.wake()",
        "                pass",
        ORDERS,
    ),
    Lie(
        "the deadline is ignored",
        "core/drain.py",
        "or now < run.deadline:",
        "or True:",
        PHASES,
    ),
    Lie(
        "a zero at the deadline counts",
        "core/drain.py",
        "        if self.expire(now):\n            return\n",
        "",
        PHASES,
    ),
    Lie(
        "a resumed nonce can be read again",
        "core/drain.py",
        "        self._retired.add(nonce)\n",
        "",
        PHASES,
    ),
    Lie(
        "the verdict is read with the gate ajar",
        "core/drain.py",
        "if self.run is not None and self.run.closing:",
        "if False:",
        MIDDLEWARE,
    ),
    Lie(
        "closes are at random anywhere in the window",
        "core/spread.py",
        "yield (number + chance.random()) / connections",
        "yield chance.random()",
        SPREAD,
    ),
    Lie(
        "closes go on past the deadline",
        "core/spread.py",
        "        if longest + self.window <= left:",
        "        if True:",
        SPREAD,
    ),
    Lie(
        "all are asked to come back at once",
        "core/spread.py",
        "return chance.randint(1000 * least, 2000 * least)",
        "return 1000 * least",
        SPREAD,
    ),
    Lie(
        "no response is ever complete",
        "exchange.py",
        'return self.last is not None and not self.last.get("more_body", False)',
        "return False",
        EXCHANGE,
    ),
    Lie(
        "nobody looks for the policy of a route",
        "policies.py",
        "of_route(self._settings.policies, route_path(scope))",
        "None",
        POLICIES,
    ),
    Lie(
        "nothing can be interrupted but a future itself",
        "interrupt.py",
        "*_, innermost = chain(awaitable)",
        "innermost = awaitable",
        INTERRUPT,
    ),
    Lie(
        "a digest is not compared",
        "core/envelope.py",
        "    if str(total) != given.digest:\n",
        "    if False:\n",
        STATE_VECTORS,
    ),
    Lie(
        "state of another release is taken",
        "core/envelope.py",
        "    if wrong:\n",
        "    if False:\n",
        STATE_VECTORS,
    ),
    Lie(
        "more is taken than the maximum",
        "core/envelope.py",
        "if len(self.body) + len(part) > self._maximum:",
        "if len(self.body) > self._maximum:",
        STATE_VECTORS,
    ),
    Lie(
        "an adapter is not asked before its import",
        "state.py",
        "    _check_value(adapter, value, StateEnvelopeInvalid)\n",
        "",
        STATE_VECTORS,
    ),
    Lie(
        "a host need only begin like a local one",
        "location.py",
        "_SOURCE_URL.fullmatch(url)",
        "_SOURCE_URL.match(url)",
        STATE_VECTORS,
    ),
    Lie(
        "a retry may name another source",
        "bodies.py",
        'exclude={"timeout_ms"}',
        'exclude={"timeout_ms", "source"}',
        STATE_VECTORS,
    ),
    Lie(
        "names are sorted by their code points",
        "core/canonical.py",
        "_in_order(members, _utf16)",
        "sorted(members)",
        CANONICAL,
    ),
    Lie(
        "two halves of a pair are written apart",
        "core/canonical.py",
        '    return _utf16(text).decode("utf-16-be", "surrogatepass")\n',
        "    return text\n",
        CANONICAL,
    ),
    Lie(
        "a release whose state has gone over serves again",
        "core/drain.py",
        "if self.run.acknowledged and not force:",
        "if False:",
        PHASES,
    ),
    Lie(
        "state goes to one new release after another",
        "core/drain.py",
        "if one.nonce != nonce or (is_other and lives):",
        "if False:",
        PHASES,
    ),
    Lie(
        "a worker that knows nothing of the state does not matter",
        "core/handoff.py",
        "if set(live) != set(handoff.members):",
        "if not set(handoff.members) <= set(live):",
        HANDOFF,
    ),
    Lie(
        "what has moved here for good can be undone",
        "core/handoff.py",
        "if not handoff.is_provisional:",
        'if handoff.status != "acknowledged":',
        HANDOFF,
    ),
    Lie(
        "what is sealed is exported anew",
        "exporting.py",
        "        if (run := self._lifecycle.run) is not None and run.sealed:\n"
        "            kept",
        "        if False:\n            kept",
        SEALED,
    ),
    Lie(
        "what was imported too late stays",
        "importing.py",
        '            if handoff.status == "failed":\n                here.over',
        "            if False:\n                here.over",
        LATE,
    ),
    Lie(
        "who is out of sight is dead",
        "origin.py",
        'process.get("host") != _host()',
        "False",
        ORIGIN,
    ),
)


def copied(where: Path, lie: Lie | None = None) -> Path:
    """A copy of the package, with that lie in it."""
    shutil.copytree(
        HOME, where / "drainmw", ignore=shutil.ignore_patterns("__pycache__")
    )
    if lie is not None:
        file = where / "drainmw" / lie.file
        text = file.read_text()
        assert text.count(lie.old) == 1, f"{lie.name}: {lie.file} has changed"
        file.write_text(text.replace(lie.old, lie.new))
    return where


@pytest.fixture(scope="module")
def forked() -> Iterator[Forks]:
    with forks() as found:
        yield found


TOLD = dict.fromkeys(lie.tests for lie in LIES)


@pytest.mark.parametrize("tests", TOLD, ids=" ".join)
def test_the_tests_pass_without_a_lie(
    forked: Forks, tmp_path: Path, tests: tuple[str, ...]
) -> None:
    result = forked.run(copied(tmp_path), tests)
    assert result.code == 0, result.output[-3000:]


@pytest.mark.parametrize("lie", LIES, ids=[lie.name for lie in LIES])
def test_the_tests_find_the_lie(forked: Forks, tmp_path: Path, lie: Lie) -> None:
    result = forked.run(copied(tmp_path, lie), lie.tests)
    assert result.code == 1, result.output[-3000:]
