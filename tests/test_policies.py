"""Which policy a connection has: its route's, the function's, or that of its kind."""

import asyncio
import gc
import logging
from collections.abc import Callable
from typing import Any

import pytest

from drainmw import Policy
from drainmw.log import NAME
from drainmw.policies import Policies
from drainmw.settings import load
from drainmw.testing import http_scope, websocket_scope

pytestmark = pytest.mark.anyio

Choose = Callable[[dict[str, Any]], Any]

OF_KINDS = {"websocket_grace": 2.0, "stream_grace": 0.5}


def policies(**settings: Any) -> Policies:
    return Policies(load({}, **OF_KINDS | settings))


def of_websocket(policies: Policies, path: str = "/", **scope: Any) -> Policy:
    return policies.of_websocket(websocket_scope(path, **scope))


def of_stream(policies: Policies, path: str = "/", **scope: Any) -> Policy:
    return policies.of_response(http_scope(path, **scope), is_event_stream=True)


def of_download(policies: Policies, path: str = "/", **scope: Any) -> Policy:
    return policies.of_response(http_scope(path, **scope), is_event_stream=False)


EACH_KIND = pytest.mark.parametrize(
    ("of", "default"),
    [
        (of_websocket, Policy("close", 2.0)),
        (of_stream, Policy("end", 0.5)),
        (of_download, Policy("finish", 0.5)),
    ],
    ids=["websocket", "event stream", "other response"],
)

Of = Callable[..., Policy]


# By kind


@EACH_KIND
def test_without_any_setting_the_kind_decides(of: Of, default: Policy) -> None:
    assert of(Policies(load({}))) == default


def test_the_policy_of_each_kind_can_be_set() -> None:
    turned = policies(
        websocket_policy="finish", event_stream_policy="finish", response_policy="end"
    )
    assert of_websocket(turned) == Policy("finish", 2.0)
    assert of_stream(turned) == Policy("finish", 0.5)
    assert of_download(turned) == Policy("end", 0.5)


def test_each_kind_has_the_grace_of_its_setting() -> None:
    longer = policies(websocket_grace=7, stream_grace=9)
    graces = (
        of(longer, path="/x").grace for of in (of_websocket, of_stream, of_download)
    )
    assert tuple(graces) == (7, 9, 9)


# By route


@EACH_KIND
def test_a_route_wins_over_the_kind_and_over_the_function(
    of: Of, default: Policy
) -> None:
    asked: list[str] = []

    def choose(scope: dict[str, Any]) -> str:
        asked.append(scope["path"])
        return "close 9"

    routes = {"/a": "finish", "/b/*": Policy("end", 3)}
    both = policies(policies=routes, policy=choose)
    assert of(both, "/a") == Policy("finish", default.grace)
    assert of(both, "/b/c") == Policy("end", 3)
    assert asked == []
    assert of(both, "/c") == Policy("close", 9)
    assert asked == ["/c"]


@EACH_KIND
def test_a_route_that_does_not_fit_changes_nothing(of: Of, default: Policy) -> None:
    routes = policies(policies={"/a": "finish 1", "/b/*": "close 1"})
    assert of(routes, "/") == of(routes, "/b") == of(routes, "/a/b") == default


@EACH_KIND
@pytest.mark.parametrize(
    ("path", "root", "fits"),
    [
        ("/a", "", True),
        ("/api/a", "/api", True),  # servers leave the root path in, or do not
        ("/a", "/api", True),
        ("/api/a", "", False),
        ("/apis/a", "/api", False),
    ],
)
def test_a_route_is_below_the_root_path(
    of: Of, default: Policy, path: str, root: str, fits: bool
) -> None:
    own = Policy("finish", 33)
    routes = policies(policies={"/a": own})
    assert of(routes, path, root_path=root) == (own if fits else default)


@EACH_KIND
@pytest.mark.parametrize("name", ["finish", "close", "end"])
def test_each_action_is_understood_for_each_kind(
    of: Of, default: Policy, name: str
) -> None:
    assert of(policies(policies={"/*": name})).waits is (name == "finish")


# A grace of its own


@EACH_KIND
@pytest.mark.parametrize("grace", [0, 0.0, 0.1, 600])
def test_a_grace_of_its_own_is_kept_and_a_grace_of_zero_is_one(
    of: Of, default: Policy, grace: float
) -> None:
    by_route = policies(policies={"/": Policy("close", grace)})
    by_function = policies(policy=lambda _scope: Policy("close", grace))
    assert of(by_route).grace == of(by_function).grace == grace


@EACH_KIND
def test_a_policy_without_one_has_the_grace_of_its_kind(
    of: Of, default: Policy
) -> None:
    by_route = policies(policies={"/": "close"})
    by_function = policies(policy=lambda _scope: Policy("close"))
    assert of(by_route).grace == of(by_function).grace == default.grace


# By the app's own function


@EACH_KIND
@pytest.mark.parametrize(
    ("answer", "policy"),
    [
        ("finish", Policy("finish")),
        ("close 5", Policy("close", 5)),
        (Policy("end", 0), Policy("end", 0)),
        (Policy("finish"), Policy("finish")),
    ],
)
def test_the_function_answers_a_policy_or_its_name(
    of: Of, default: Policy, answer: Any, policy: Policy
) -> None:
    grace = default.grace if policy.grace is None else policy.grace
    assert of(policies(policy=lambda _scope: answer)) == Policy(policy.action, grace)


@EACH_KIND
def test_a_function_that_answers_none_leaves_it_to_the_kind(
    of: Of, default: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    assert of(policies(policy=lambda _scope: None)) == default
    assert caplog.records == []


@pytest.mark.parametrize("of", [of_websocket, of_stream])
def test_the_function_has_a_scope_of_its_own_to_look_at(of: Of) -> None:
    scopes: list[dict[str, Any]] = []

    def choose(scope: dict[str, Any]) -> None:
        scopes.append(dict(scope))
        scope.clear()

    asked, state = policies(policy=choose), {"user": "a"}
    scope = {**http_scope("/x"), "state": state}
    asked.of_websocket(scope)
    asked.of_response(scope, is_event_stream=True)
    assert scopes == [scope, scope]
    assert scope["path"] == "/x"


def raises(error: BaseException) -> Choose:
    def choose(_scope: dict[str, Any]) -> str:
        raise error

    return choose


def failures(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str, str]]:
    return [
        (record.levelno, facts["event"], facts["error"])
        for record in caplog.records
        for facts in [vars(record)[NAME]]
    ]


@EACH_KIND
@pytest.mark.parametrize(
    ("choose", "error"),
    [
        (
            lambda _scope: "stop",
            "there is no policy 'stop'; it is finish, close or end",
        ),
        (lambda _scope: "", "there is no policy ''; it is finish, close or end"),
        (
            lambda _scope: "close soon",
            "a grace is a number of seconds from 0 to 600, not 'soon'",
        ),
        (lambda _scope: 5, "a policy is a Policy or its name, not int"),
        (lambda _scope: True, "a policy is a Policy or its name, not bool"),
        (lambda _scope: False, "a policy is a Policy or its name, not bool"),
        (lambda _scope: ("close", 5), "a policy is a Policy or its name, not tuple"),
        (lambda scope: scope["absent"], "'absent'"),
        (raises(RuntimeError("redis://:secret@host")), "redis://***@host"),
        (raises(ValueError()), "ValueError"),
    ],
)
def test_a_function_that_fails_has_said_nothing_and_it_is_logged(
    of: Of,
    default: Policy,
    choose: Choose,
    error: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert of(policies(policy=choose)) == default
    assert failures(caplog) == [(logging.ERROR, "policy failed", error)]
    assert caplog.records[0].exc_info is not None


def test_what_is_meant_to_end_the_process_is_not_held_up() -> None:
    with pytest.raises(KeyboardInterrupt):
        of_websocket(policies(policy=raises(KeyboardInterrupt())))


# A function that does not answer at once


async def answers_late(_scope: dict[str, Any]) -> str:
    return "finish"


class AnswersLate:
    """What no look at it as a function would tell of."""

    async def __call__(self, _scope: dict[str, Any]) -> str:
        return "finish"


@EACH_KIND
@pytest.mark.parametrize("choose", [AnswersLate(), lambda scope: answers_late(scope)])
def test_a_coroutine_is_no_answer_and_nothing_is_left_of_it(
    of: Of,
    default: Policy,
    choose: Choose,
    caplog: pytest.LogCaptureFixture,
    recwarn: pytest.WarningsRecorder,
) -> None:
    assert of(policies(policy=choose)) == default
    gc.collect()
    assert [str(warning.message) for warning in recwarn] == []
    said = "policy must answer at once, not by a coroutine"
    assert failures(caplog) == [(logging.ERROR, "policy failed", said)]


async def test_nor_is_a_task_and_it_is_left_to_who_has_made_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    task = asyncio.create_task(answers_late({}))
    assert of_websocket(policies(policy=lambda _scope: task)) == Policy("close", 2.0)
    said = "a policy is a Policy or its name, not Task"
    assert failures(caplog) == [(logging.ERROR, "policy failed", said)]
    assert await task == "finish"
