"""The tree of errors is as it is drawn, and each has a code of its own."""

import inspect
import re

from drainmw import errors
from drainmw.errors import DrainError

CLASSES = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, DrainError)
}
SHARED = {
    "RUNTIME_DRAIN_ERROR": {"DrainError", "Refused", "Misuse", "InstalledTwice"}
    | {"SourceError"},
    "RUNTIME_DRAIN_ALREADY_STARTED": {"AlreadyStarted", "PhaseConflict"},
    "RUNTIME_STATE_ERROR": {"StateError", "StateFetchError"},
    "RUNTIME_STATE_REQUEST_INVALID": {"StateRequestInvalid", "StateVersionUnknown"},
}


def drawn() -> dict[str, str]:
    """Each error of the drawing and the one that it hangs on."""
    above = {0: "DrainError"}
    tree = {}
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"([│ ]*)[├└]── (\w+)", line)
        if found:
            depth = len(found[1]) // 4 + 1
            above[depth] = found[2]
            tree[found[2]] = above[depth - 1]
    return tree


def test_the_tree_is_as_it_is_drawn() -> None:
    bases = {name: value.__bases__[0].__name__ for name, value in CLASSES.items()}
    del bases["DrainError"]
    assert drawn() == bases


def test_two_errors_share_a_code_only_where_that_is_meant() -> None:
    codes: dict[str, set[str]] = {}
    for name, value in CLASSES.items():
        codes.setdefault(value.code, set()).add(name)
    assert {code: names for code, names in codes.items() if len(names) > 1} == SHARED
