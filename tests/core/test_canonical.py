"""One value has one text, however it was spelled; what is no value is refused."""

import datetime
import hashlib
import json
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from enum import IntEnum, StrEnum
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given
from hypothesis import strategies as st

from drainmw.core.canonical import EXACT, Digest, canonical, loads, write
from drainmw.errors import StateExportTooLarge, StateValueInvalid

# Any spelling

integers = st.integers(-EXACT, EXACT)
texts = st.text(st.characters(exclude_categories=[]), max_size=12)
"""With lone surrogates in them, and pairs in two halves."""
names = texts.map(lambda text: joined(text))
scalars = (
    st.none()
    | st.booleans()
    | integers
    | st.integers(-(10**25), 10**25)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner),
    max_leaves=12,
)
Choose = Callable[[list[str]], str]


def joined(text: str) -> str:
    """As JSON reads it: two halves of a pair that meet are one character."""
    units = text.encode("utf-16-be", "surrogatepass")
    return units.decode("utf-16-be", "surrogatepass")


def spelled(value: Any, choose: Choose, shuffled: Callable[[list[Any]], Any]) -> str:
    """A JSON text of that value, with every freedom that JSON leaves."""

    def space() -> str:
        return choose(["", "", " ", "\n\t", "\r\n  "])

    def text(characters: str) -> str:
        return '"' + "".join(choose(spellings_of(c)) for c in characters) + '"'

    def member(name: str, inner: Any) -> str:
        return f"{space()}{text(name)}{space()}:{element(inner)}"

    def element(inner: Any) -> str:
        return f"{space()}{written(inner)}{space()}"

    def written(inner: Any) -> str:
        if isinstance(inner, str):
            return text(inner)
        if isinstance(inner, list):
            return f"[{','.join(element(item) for item in inner) or space()}]"
        if isinstance(inner, dict):
            members = [member(*pair) for pair in shuffled(list(inner.items()))]
            earlier = [member(name, None) for name in inner if choose(["", "again"])]
            return f"{{{','.join(earlier + members) or space()}}}"
        if inner is None or isinstance(inner, bool):
            return json.dumps(inner)
        return choose(numbers_of(inner))

    return element(value)


def spellings_of(character: str) -> list[str]:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    escape = "".join(f"\\u{units[i : i + 4]}" for i in range(0, len(units), 4))
    if "\ud800" <= character <= "\udfff":
        return [escape, escape.upper().replace("\\U", "\\u")]
    short = json.dumps(character, ensure_ascii=False)[1:-1]
    slash = ["\\/"] if character == "/" else []
    return [short, escape, escape.upper().replace("\\U", "\\u"), *slash]


def numbers_of(number: int | float) -> list[str]:
    if isinstance(number, float):
        exact = Decimal(number)
        return [repr(number), f"{exact:f}", f"{exact:e}", f"{exact:E}".upper()]
    shifted = f"{number * 100}E-2"
    return [str(number), f"{number}.0", shifted, f"{number}.0e+0"]


@given(st.data(), values)
@example(None, dict.fromkeys(["\ue000", "😀", "\ud83d", "\udc00", "\uffff"], 1))
@example(None, [-0.0, 0, 1e21, 10**21, 1e16, 123456789012345680000, 2**53 + 1])
def test_a_value_has_one_text_however_it_is_spelled(data: Any, value: Any) -> None:
    spelling = json.dumps(value, indent=1)
    if data is not None:
        spelling = spelled(
            value,
            lambda choices: str(data.draw(st.sampled_from(choices))),
            lambda members: data.draw(st.permutations(members)),
        )
    assert canonical(loads(spelling.encode())) == canonical(value)


@given(values)
def test_what_was_written_is_read_as_what_is_written_again(value: Any) -> None:
    text = canonical(value)
    assert canonical(loads(text)) == text
    assert canonical(loads(b"\xef\xbb\xbf" + text)) == text


@given(values)
def test_what_the_package_takes_is_written_as_it_writes_it(value: Any) -> None:
    try:
        expected = rfc8785.dumps(value)
    except rfc8785.CanonicalizationError:
        return
    assert canonical(value) == expected


@given(values)
def test_what_the_package_refuses_is_written_as_it_writes_the_rest(value: Any) -> None:
    """One lone surrogate sends everything beside it another way."""
    assert canonical([value, "\ud800"]) == b"[" + canonical(value) + b',"\\ud800"]'


@given(st.lists(names, unique=True))
def test_names_are_in_the_order_of_their_utf_16_code_units(
    unsorted: list[str],
) -> None:
    written = loads(canonical(dict.fromkeys(unsorted)))
    units = [name.encode("utf-16-be", "surrogatepass") for name in written]
    assert units == sorted(units)


@pytest.mark.parametrize("form", ["n{}", "é{}", "{}\ue000", "{}😀", "{}\ud800"])
def test_as_many_names_as_there_are_stand_in_their_order(form: str) -> None:
    """More than one call sorts."""
    shuffled = [form.format(7919 * number % 10_007) for number in range(10_007)]
    expected = sorted(
        shuffled, key=lambda name: name.encode("utf-16-be", "surrogatepass")
    )
    assert list(loads(canonical(dict.fromkeys(shuffled)))) == expected


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_written_as_short_as_it_can_be_read_again(number: float) -> None:
    text = canonical(number).decode()
    assert float(text) == number
    digits = Decimal(text).normalize().as_tuple().digits
    assert digits == Decimal(repr(number)).normalize().as_tuple().digits


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2**53, "9007199254740992"),
        (2**53 + 1, "9007199254740992"),
        (-(2**53) - 1, "-9007199254740992"),
        (10**21, "1e+21"),
        (10**308, "1e+308"),
        ("a\ud83d\ude00b", '"a😀b"'),
        ("\udc00\ud800\ud800\udc00", '"\\udc00\\ud800𐀀"'),
        ('\ud800\n"\\\u007f', '"\\ud800\\n\\"\\\\\u007f"'),
        ({"\ud83d\ude00": 1}, '{"😀":1}'),
        ({"b": "\ud800", "a": [], "c": {}}, '{"a":[],"b":"\\ud800","c":{}}'),
        (
            dict.fromkeys(["\ue000", "\udfff", "😀", "\ud800", "z"], 1),
            '{"z":1,"\\ud800":1,"😀":1,"\\udfff":1,"\ue000":1}',
        ),
        ((1, (2, [])), "[1,[2,[]]]"),
        ([Colour.RED, Level.HIGH, True], '["red",3,true]'),
        ([Colour.RED, Level.HIGH, True, 2**60], '["red",3,true,1152921504606847000]'),
    ],
)
def test_what_python_has_beyond_json_is_the_json_that_it_means(
    value: object, text: str
) -> None:
    assert canonical(value).decode() == text
    assert canonical(value, maximum=1000).decode() == text


def test_an_integer_that_is_read_as_a_double_is_told() -> None:
    told: list[int] = []
    value = {"a": 2**53 + 1, "b": 2**60, "c": [EXACT, -EXACT, -(2**53), 2.0**60]}
    canonical(value, large=told.append)
    assert told == [2**53 + 1, 2**60, -(2**53)]


def test_the_digest_is_that_of_all_parts() -> None:
    total = Digest(b"[", b'"a"')
    total.add(b"]")
    whole = hashlib.sha256(b'["a"]').hexdigest()
    assert str(total) == f"sha256:{whole}"
    assert str(Digest(b"")) == str(Digest()) == f"sha256:{hashlib.sha256().hexdigest()}"


def test_the_hash_is_never_given_so_much_that_it_lets_go_of_the_interpreter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """To do that often and briefly starves whoever waits for it."""
    bites: list[bytes] = []

    class Hash:
        def update(self, bite: bytes) -> None:
            bites.append(bytes(bite))

    monkeypatch.setattr(hashlib, "sha256", Hash)
    parts = [b"a", b"b" * 2047, b"c" * 2048, b"", b"d" * 100_000]
    total = Digest(*parts[:3])
    for part in parts[3:]:
        total.add(part)
    assert b"".join(bites) == b"".join(parts)
    assert max(map(len, bites)) < 2048  # as CPython has it


# What is no value


def nested(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


def cyclic_list(*beside: object) -> list[Any]:
    value: list[Any] = [*beside]
    value.append(value)
    return value


def cyclic_dict() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = [{"b": value}]
    return value


NO_VALUES = {
    "not a number": float("nan"),
    "infinity": float("inf"),
    "minus infinity": {"a": [float("-inf")]},
    "a set": {"a": {1, 2}},
    "bytes": [b"a"],
    "a date": datetime.date(2026, 11, 30),
    "an object": object(),
    "a decimal": Decimal(1),
    "a name of bytes": {b"a": 1},
    "a name that is a number": {1: 1},
    "a name that is nothing": {"a": {None: 1}},
    "beyond a double": 10**400,
    "beyond a double below": [-(10**309)],
    "beyond the digits of an int": 10**5000,
    "a list in itself": cyclic_list(),
    "a dict in itself": cyclic_dict(),
    "a list in itself beside much else": cyclic_list("x" * 10_000, "\ud800"),
    "deep": nested(100_000),
    "deep beside a lone surrogate": ["\ud800", nested(100_000)],
}


@pytest.mark.parametrize("maximum", [None, 50_000])
@pytest.mark.parametrize("value", NO_VALUES.values(), ids=list(NO_VALUES))
def test_what_is_not_json_is_refused_by_name(
    value: object, maximum: int | None
) -> None:
    with pytest.raises(StateValueInvalid) as refused:
        canonical(value, maximum=maximum)
    assert refused.value.code == "RUNTIME_STATE_VALUE_INVALID"
    assert str(refused.value)


def test_a_cycle_is_told_from_what_is_merely_deep() -> None:
    with pytest.raises(StateValueInvalid, match="a list holds itself"):
        canonical(cyclic_list())
    with pytest.raises(StateValueInvalid, match="nested too deeply"):
        canonical(nested(100_000))


def test_what_stands_in_two_places_is_no_cycle() -> None:
    shared = ["a"]
    assert canonical({"x": shared, "y": [shared, shared]}) == (
        b'{"x":["a"],"y":[["a"],["a"]]}'
    )


@pytest.mark.parametrize("value", [["a" * 10, 1.5], ["\ud800", 2**60], "é", {}])
def test_a_text_may_be_as_long_as_the_maximum(value: object) -> None:
    text = canonical(value)
    assert canonical(value, maximum=len(text)) == text
    for less in (len(text) - 1, 1, 0, -5):
        with pytest.raises(StateExportTooLarge):
            canonical(value, maximum=less)


def test_no_more_than_the_maximum_is_ever_written() -> None:
    """Thirty levels of two are a thousand million texts."""
    value: object = "x" * 1000
    for _ in range(30):
        value = [value, value]
    tracemalloc.start()
    with pytest.raises(StateExportTooLarge):
        canonical(value, maximum=100_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    "value",
    [
        list(range(200_000)),
        {f"{number:050}": [] for number in range(20_000)},
        [["a" * 60]] * 20_000,
        [1.5, {"b": "c" * 500}] * 2000,
    ],
)
def test_a_value_is_written_in_parts_none_of_which_is_large(value: object) -> None:
    parts: list[bytes] = []
    write(value, parts.append)
    assert b"".join(parts) == canonical(value)
    assert max(map(len, parts)) < 100_000


@pytest.mark.parametrize("name", ["x" * 100_000, "x"])
def test_what_is_kept_before_it_is_written_is_bounded(name: str) -> None:
    """A text may stand in many places, and take no memory there."""
    value = [{name: "y" * (100_001 - len(name))}] * 500
    written: list[int] = []
    tracemalloc.start()
    write(value, lambda part: written.append(len(part)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(written) > 50_000_000
    assert peak < 2_000_000


# Reading

NOT_JSON = {
    "empty": b"",
    "white space": b" \n",
    "a word": b"hello",
    "NaN": b'{"a":NaN}',
    "infinity": b"Infinity",
    "minus infinity": b"[-Infinity]",
    "beyond a double": b"1e999",
    "beyond a double below": b"-1E+400",
    "400 digits": b"5" * 400,
    "5,000 digits": b"[" + b"5" * 5000 + b"]",
    "a zero in front": b"01",
    "a plus in front": b"+1",
    "no digit in front": b".5",
    "no digit behind": b"1.",
    "hexadecimal": b"0x10",
    "digits of another script": "٣".encode(),
    "bad UTF-8": b'"\xff"',
    "overlong UTF-8": b'"\xc0\xaf"',
    "a surrogate in UTF-8": b'"\xed\xa0\x80"',
    "UTF-16": '"a"'.encode("utf-16"),
    "two byte order marks": b"\xef\xbb\xbf\xef\xbb\xbf{}",
    "cut short": b'{"a":1',
    "cut short within a mark": b"\xef\xbb",
    "something behind it": b"{} x",
    "a comma too many": b"[1,]",
    "single quotes": b"{'a':1}",
    "a comment": b"/**/1",
    "a control character": b'"\x01"',
    "another white space": b"\xc2\xa01",
    "half an escape": b'"\\ud8"',
    "a deep array": b"[" * 100_000,
    "a deep object": b'{"a":' * 100_000,
    "deep and complete": b"[" * 100_000 + b"]" * 100_000,
}


@pytest.mark.parametrize("body", NOT_JSON.values(), ids=list(NOT_JSON))
def test_what_does_not_parse_is_refused_however_it_does_not(body: bytes) -> None:
    with pytest.raises(StateValueInvalid) as refused:
        canonical(loads(body))  # what is deep is read by some versions of Python
    assert str(refused.value)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"9007199254740991", EXACT),
        (b"-9007199254740991", -EXACT),
        (b"9007199254740992", 2.0**53),
        (b"9007199254740993", 2.0**53),
        (b"123456789012345680000", 1.2345678901234568e20),
        (b"5" * 300, float("5" * 300)),
        (b"0." + b"5" * 5000, 5 / 9),
        (b"1e-999", 0.0),
        (b"-0", 0),
        (b"1.0", 1.0),
        (b'\xef\xbb\xbf{"a":1,"b":0,"a":2}', {"a": 2, "b": 0}),
        (b'"\\ud83d\\ude00\\ud83d"', "😀\ud83d"),
        (bytearray(b" [ ] "), []),
    ],
)
def test_a_number_is_read_as_the_double_that_it_is(body: bytes, value: Any) -> None:
    read = loads(body)
    assert (type(read), read) == (type(value), value)
