"""How a policy is written, and which one a path has."""

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainmw.core.policy import (
    Action,
    Policy,
    normal,
    of_route,
    parse,
    parse_routes,
)

ACTIONS = ("finish", "close", "end")

# A policy


@pytest.mark.parametrize("name", ACTIONS)
def test_a_policy_is_made_of_an_action_or_of_its_name(name: str) -> None:
    policy = Policy(name)
    assert policy == Policy(Action(name))
    assert policy.action is Action(name)
    assert policy.grace is None


@pytest.mark.parametrize(
    ("name", "waits"), [("finish", True), ("close", False), ("end", False)]
)
def test_only_finish_waits_for_the_connection(name: str, waits: bool) -> None:
    assert Policy(name).waits is waits


@pytest.mark.parametrize("name", ["", "Close", "FINISH", "stop", "close 5", " end"])
def test_there_is_no_other_action(name: str) -> None:
    with pytest.raises(ValueError) as refused:
        Policy(name)
    assert str(refused.value) == (
        f"there is no policy {name!r}; it is finish, close or end"
    )


def test_a_text_has_a_grace_and_then_a_notice() -> None:
    assert parse("close 5 1") == Policy("close", grace=5, notice=1)
    with pytest.raises(ValueError, match="has more than a grace and a notice"):
        parse("close 5 1 1")


def test_a_notice_is_a_number_of_seconds_too() -> None:
    assert Policy("close", notice=1).notice == 1
    assert Policy("close", grace=10).notice is None
    with pytest.raises(ValueError, match="a notice is a number of seconds"):
        Policy("close", notice=-1)


@pytest.mark.parametrize("grace", [0, 0.0, 0.25, 5, 600, 600.0, None])
def test_a_grace_is_kept_as_it_was_given(grace: float | None) -> None:
    assert Policy("close", grace).grace == grace
    assert Policy("close", grace=grace) == Policy(Action.CLOSE, grace)


@pytest.mark.parametrize(
    "grace",
    [
        *(-1, -0.001, 600.001, 601, float("inf"), float("-inf"), float("nan")),
        *("5", "", True, False, [5], 5j, 10**400),
    ],
    ids=str,
)
def test_a_grace_is_a_number_of_seconds_in_its_bounds(grace: Any) -> None:
    with pytest.raises(ValueError, match=r"^a grace is a number of seconds from 0 to"):
        Policy("close", grace)


def test_a_policy_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Policy("close").grace = 1.0  # type: ignore[misc]  # frozen is the test


# A policy as text


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("finish", Policy("finish")),
        ("close", Policy("close")),
        ("end", Policy("end")),
        ("close 5", Policy("close", 5)),
        ("close 0", Policy("close", 0)),
        ("end 0.5", Policy("end", 0.5)),
        ("end 1e2", Policy("end", 100)),
        ("finish 600", Policy("finish", 600)),
        ("  close   5  ", Policy("close", 5)),
        ("close\t5", Policy("close", 5)),
        ("\tclose \t 5\n", Policy("close", 5)),
        ("close ", Policy("close")),
    ],
)
def test_a_text_names_an_action_and_perhaps_a_grace(text: str, policy: Policy) -> None:
    assert parse(text) == policy


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "5", "stop", "Close", "close5", "5 close", "close,5"),
        *("close soon", "close 5s", "close 5 6 7", "close -1", "close 601"),
        *("close nan", "close inf", "close -inf", "close 1,5", "close None"),
    ],
)
def test_any_other_text_is_no_policy(text: str) -> None:
    with pytest.raises(ValueError):
        parse(text)


@given(st.sampled_from(ACTIONS), st.floats(0, 600))
def test_what_is_written_is_what_is_read(action: str, grace: float) -> None:
    assert parse(f"{action} {grace!r}") == Policy(action, grace)


@given(st.text(max_size=30))
def test_a_text_is_a_policy_or_a_value_error(text: str) -> None:
    try:
        policy = parse(text)
    except ValueError:
        return
    assert policy.action in ACTIONS


def test_a_policy_in_either_form_comes_out_as_one() -> None:
    given = Policy("close", 5)
    assert normal(given) is given
    assert normal("close 5") == given
    assert normal(Action.END) == Policy("end")


@pytest.mark.parametrize(
    ("given", "kind"),
    [(None, "NoneType"), (5, "int"), (b"close", "bytes"), (("close", 5), "tuple")],
)
def test_anything_else_is_told_what_a_policy_is(given: Any, kind: str) -> None:
    with pytest.raises(
        TypeError, match=rf"^a policy is a Policy or its name, not {kind}$"
    ):
        normal(given)


# Routes


@pytest.mark.parametrize(
    ("text", "routes"),
    [
        ("", []),
        (" \n ; \n", []),
        ("/a finish", [("/a", "finish")]),
        ("/a finish\n/b close 5", [("/a", "finish"), ("/b", "close 5")]),
        ("/a finish; /b close 5", [("/a", "finish"), ("/b", "close 5")]),
        ("/a finish;\n/b/* end;", [("/a", "finish"), ("/b/*", "end")]),
        ("\n  /a\t finish \r\n", [("/a", "finish")]),
        ("/a\tclose\t5", [("/a", "close\t5")]),
        ("/a stop it now", [("/a", "stop it now")]),
        ("/a finish\n/a close", [("/a", "finish"), ("/a", "close")]),
    ],
)
def test_routes_stand_on_lines_or_between_semicolons(
    text: str, routes: list[tuple[str, str]]
) -> None:
    assert parse_routes(text) == routes


@pytest.mark.parametrize("text", ["/a", "/a finish\n/b", "/a;finish", ";/a ;/b end"])
def test_a_route_without_a_policy_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"^'/[ab]' has no policy$"):
        parse_routes(text)


FINISH, CLOSE, END = Policy("finish"), Policy("close"), Policy("end")


@pytest.mark.parametrize(
    ("route", "path", "fits"),
    [
        ("/a", "/a", True),
        ("/a", "/a/", False),
        ("/a", "/a/b", False),
        ("/a", "/ab", False),
        ("/a", "/A", False),
        ("/a", "/", False),
        ("/a/", "/a", False),
        ("/a/*", "/a/b", True),
        ("/a/*", "/a/b/c", True),
        ("/a/*", "/a/", True),
        ("/a/*", "/a/*", True),
        ("/a/*", "/a", False),
        ("/a/*", "/ab/c", False),
        ("/a/*", "/x/a/b", False),
        ("/a*", "/a", True),
        ("/a*", "/ab", True),
        ("/*", "/", True),
        ("/*", "/a/b", True),
        ("/a.b", "/aXb", False),
        ("/a[b]", "/ab", False),
        ("/a/*/b", "/a/x/b", False),
        ("/a/*/b", "/a/*/b", True),
    ],
)
def test_a_route_fits_its_path_or_with_a_star_its_beginning(
    route: str, path: str, fits: bool
) -> None:
    assert of_route([(route, CLOSE)], path) is (CLOSE if fits else None)


def test_the_first_route_that_fits_counts() -> None:
    routes = [("/a/b", FINISH), ("/a/*", CLOSE), ("/a/c", FINISH), ("/*", END)]
    assert of_route(routes, "/a/b") is FINISH
    assert of_route(routes, "/a/c") is CLOSE
    assert of_route(routes, "/d") is END


def test_no_route_is_no_policy() -> None:
    assert of_route((), "/a") is None


@given(st.text(min_size=1, max_size=20), st.text(max_size=20))
def test_a_star_stands_for_whatever_follows(start: str, rest: str) -> None:
    assert of_route([(start + "*", CLOSE)], start + rest) is CLOSE
