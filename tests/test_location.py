"""Only an address that is plainly of this host is taken."""

from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drainmw.errors import StateSourceInvalid
from drainmw.location import Location

V4, V6 = ("127.0.0.1",), ("::1",)

LOCAL = {
    "http://127.0.0.1/x": ("127.0.0.1", V4, 80, "/x"),
    "http://127.0.0.1": ("127.0.0.1", V4, 80, "/"),
    "http://127.0.0.1:8000": ("127.0.0.1:8000", V4, 8000, "/"),
    "http://[::1]:8000/x": ("[::1]:8000", V6, 8000, "/x"),
    "http://localhost:65535/": ("localhost:65535", V4 + V6, 65535, "/"),
    "HTTP://LocalHost/X": ("LocalHost", V4 + V6, 80, "/X"),
    "http://127.0.0.1:1/x?a=b&c=/?@:": ("127.0.0.1:1", V4, 1, "/x?a=b&c=/?@:"),
    "http://127.0.0.1/a//b/%41%2f;c=1,(d)'*": (
        "127.0.0.1",
        V4,
        80,
        "/a//b/%41%2f;c=1,(d)'*",
    ),
    "http://127.0.0.1/@example.com": ("127.0.0.1", V4, 80, "/@example.com"),
    "http://127.0.0.1/...": ("127.0.0.1", V4, 80, "/..."),
}

ELSEWHERE = [
    # another scheme, or none
    "https://127.0.0.1/x",
    "ws://127.0.0.1/x",
    "http:/127.0.0.1/x",
    "http:127.0.0.1/x",
    "http:///127.0.0.1/x",
    "//127.0.0.1/x",
    "127.0.0.1/x",
    "javascript://127.0.0.1/x",
    # another host, however it is spelled
    "http://127.0.0.2/x",
    "http://127.1/x",
    "http://2130706433/x",
    "http://0x7f.0.0.1/x",
    "http://0177.0.0.1/x",
    "http://127.0.0.01/x",
    "http://127.0.0.1./x",
    "http://localhost./x",
    "http://[::ffff:7f00:1]/x",
    "http://[0:0:0:0:0:0:0:1]/x",
    "http://[::1%25lo]/x",
    "http://[::1/x",
    "http://::1/x",
    "http://[127.0.0.1]/x",
    "http://[localhost]/x",
    "http://0/x",
    "http:///x",
    "http://localho\u017ft/x",
    "http://\u2460\u2461\u2466.0.0.1/x",
    "http://127。0。0。1/x",
    "http://%3127.0.0.1/x",
    "http://localhost%00.example.com/x",
    "http://localhost\x00.example.com/x",
    # somebody in front of the host
    "http://@127.0.0.1/x",
    "http://:@127.0.0.1/x",
    "http://localhost:80@example.com/x",
    "http://example.com#@127.0.0.1/x",
    "http://example.com\\@127.0.0.1/x",
    "http://127.0.0.1\\.example.com/x",
    "http://127.0.0.1\\x",
    "http:\\\\127.0.0.1/x",
    # ports
    "http://127.0.0.1:/x",
    "http://127.0.0.1:0/x",
    "http://127.0.0.1:080/x",
    "http://127.0.0.1:65536/x",
    "http://127.0.0.1:99999/x",
    "http://127.0.0.1:+80/x",
    "http://127.0.0.1:8_0/x",
    "http://127.0.0.1:\u0668\u0660/x",
    "http://127.0.0.1:80:80/x",
    # paths and queries
    "http://127.0.0.1?x",
    "http://127.0.0.1?@example.com/",
    "http://127.0.0.1//example.com/x",
    "http://127.0.0.1/../x",
    "http://127.0.0.1/a/./x",
    "http://127.0.0.1/a/..",
    "http://127.0.0.1/a/%2e%2E/x",
    "http://127.0.0.1/a/.%2e?x",
    "http://127.0.0.1/a\\..\\x",
    "http://127.0.0.1/%",
    "http://127.0.0.1/%4",
    "http://127.0.0.1/%zz",
    "http://127.0.0.1/é",
    "http://127.0.0.1/\ud800",
    "http://127.0.0.1/x?a=[b]",
    "http://127.0.0.1/x?é",
    "http://127.0.0.1/x|y",
    "http://127.0.0.1/x#",
    "http://127.0.0.1/x?a#f",
    # white space, which some parsers take away
    " http://127.0.0.1/x",
    "http://127.0.0.1/x ",
    "http://127.0.0.1/x\n",
    "http://127.0.0.1/x y",
    "ht\ntp://127.0.0.1/x",
    "http://127.0\t.0.1/x",
    "http://127.0.0.1/\r\nx",
]


@pytest.mark.parametrize("url", LOCAL)
def test_an_address_of_this_host_needs_no_resolving(url: str) -> None:
    authority, addresses, port, target = LOCAL[url]
    assert Location.read(url) == Location(
        authority=authority, addresses=addresses, port=port, target=target
    )


@pytest.mark.parametrize("url", ELSEWHERE)
def test_an_address_that_is_not_plainly_of_this_host_is_refused(url: str) -> None:
    with pytest.raises(StateSourceInvalid) as refused:
        Location.read(url)
    assert refused.value.code == "RUNTIME_STATE_SOURCE_INVALID"


hosts = st.sampled_from(["127.0.0.1", "localhost", "[::1]", "example.com", ""])
ports = st.sampled_from(["", ":80", ":8000", ":", "@", "/", "/x?"])
pieces = st.sampled_from([*"/:@?#\\%.;&=", "x", "%41", "/x", "?y", "localhost"])
urls = st.tuples(hosts, ports, st.lists(pieces, max_size=5)).map(
    lambda parts: f"http://{parts[0]}{parts[1]}{''.join(parts[2])}"
)


@given(urls)
def test_parsers_agree_about_every_address_that_is_taken(url: str) -> None:
    try:
        location = Location.read(url)
    except StateSourceInvalid:
        return
    split, other = urlsplit(url), httpx.URL(url)
    assert split.hostname == other.host
    assert other.host in (*location.addresses, "localhost")
    assert split.netloc == location.authority
    assert (split.port or 80) == (other.port or 80) == location.port
    assert (split.username, other.userinfo, split.fragment) == (None, b"", "")
    assert other.raw_path.decode() == location.target


def test_a_long_address_is_looked_at_in_no_time() -> None:
    """The pattern has no two ways to read one character."""
    with pytest.raises(StateSourceInvalid):
        Location.read("http://127.0.0.1/" + "%41?a/" * 100_000 + "\\")
