"""Addresses: accepted only if browsers and this library find the same origin in them."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flows import elicit
from flows.elicitation.flow import RedirectContext
from flows.elicitation.states import Asked, Elicitation
from flows.errors import InvalidQuestion
from flows.kinds.url import VisitFlow
from flows.origin import URL_AT_MOST, is_loopback, origin_of
from tests.support.clock import NOON


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("https://example.com", "https://example.com"),
        ("https://example.com/", "https://example.com"),
        ("https://EXAMPLE.com/Path?q#f", "https://example.com"),
        ("HTTPS://example.com", "https://example.com"),
        ("https://example.com:443/", "https://example.com"),
        ("https://example.com:0443/", "https://example.com"),
        ("https://example.com:/", "https://example.com"),
        ("https://example.com:8443/", "https://example.com:8443"),
        ("https://example.com?x=https://evil.example", "https://example.com"),
        ("https://example.com#@evil.example", "https://example.com"),
        ("https://example.com/@evil.example", "https://example.com"),
        ("http://localhost:8000/", "http://localhost:8000"),
        ("http://localhost:80/", "http://localhost"),
        ("http://127.0.0.1/", "http://127.0.0.1"),
        ("http://127.9.9.9:1/", "http://127.9.9.9:1"),
        ("http://[::1]:8000/", "http://[::1]:8000"),
        ("https://[2001:DB8::1]/", "https://[2001:db8::1]"),
        ("https://bücher.example/", "https://xn--bcher-kva.example"),
        ("https://xn--bcher-kva.example/", "https://xn--bcher-kva.example"),
        ("https://BÜCHER.example/", "https://xn--bcher-kva.example"),
        ("https://пример.example", "https://xn--e1afmkfd.example"),
        ("https://example。com/", "https://example.com"),
    ],
)
def test_origin_consists_of_scheme_host_and_port(address: str, origin: str) -> None:
    assert origin_of(address) == origin
    assert origin_of(origin) == origin


@pytest.mark.parametrize(
    "address",
    [
        "",
        "/",
        "x",
        "example.com",
        "//example.com",
        "https:",
        "https:/example.com",
        "https://",
        "https:///example.com",
        "https:example.com",
        "https://:443",
        "https://?x",
        "javascript:alert(1)",
        "javascript://example.com/%0aalert(1)",
        "JAVASCRIPT://example.com",
        "data:text/html,<script>",
        "data://example.com/",
        "vbscript://example.com",
        "file:///etc/passwd",
        "file://localhost/etc/passwd",
        "ftp://example.com",
        "ws://localhost",
        "blob:https://example.com/1",
        "about:blank",
        "intent://example.com",
        "http://example.com",
        "http://localhost.example.com",
        "http://127.0.0.1.example.com",
        "http://10.0.0.1",
        "http://0.0.0.0",
        "http://169.254.169.254",
        "http://2130706433",
        "http://127.1",
        "http://0x7f.0.0.1",
        "http://[::ffff:10.0.0.1]",
        "https://user@example.com",
        "https://user:word@example.com",
        "https://:word@example.com",
        "https://@example.com",
        "https://example.com@",
        "https://example.com@evil.example",
        "https://a:b@c:d@evil.example",
        "https://example.com:99999",
        "https://example.com:65536",
        "https://example.com:-1",
        "https://example.com:+443",
        "https://example.com:4_43",
        "https://example.com:٤٤٣",
        "https://example.com:443:443",
        "https://example.com:https",
        "https://[::1",
        "https://::1]",
        "https://[example.com]",
        "https://[1.2.3.4]",
        "https://exa mple.com",
        " https://example.com",
        "https://example.com ",
        "https://example.com\n",
        "https://exam\nple.com",
        "https://exam\tple.com",
        "java\nscript://example.com",
        "https://example.com/\x00",
        "https://example.com/\x1b",
        "https://example.com/\x7f",
        "https://example.com\\@evil.example",
        "https://example.com\\.evil.example",
        "https:\\\\example.com",
        "https://evil.example\\/",
        "https://evil.example\uff0f",
        "https://evil.example\uff1fx",
        "https://a\uff20evil.example",
        "https://" + "a" * 64 + "é.example",
        "https://\ud800.example",
    ],
)
def test_unsafe_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidQuestion):
        origin_of(address)
    with pytest.raises(InvalidQuestion):
        _ = elicit.url("Please go there.", address)


def test_address_longer_than_limit_is_refused() -> None:
    longest = "https://example.com/".ljust(URL_AT_MOST, "x")
    assert origin_of(longest) == "https://example.com"
    for more in (1, 1 << 20):
        with pytest.raises(InvalidQuestion):
            origin_of(longest + "x" * more)


@pytest.mark.parametrize(
    ("address", "other"),
    [
        ("https://faß.example", "https://fass.example"),
        ("https://ς\u03b1.example", "https://\u03c3\u03b1.example"),
        ("https://a\u200db.example", "https://ab.example"),
    ],
)
def test_host_with_special_characters_is_not_read_as_another_host(address: str, other: str) -> None:
    """The address is refused, or its host is the one that browsers open."""
    try:
        origin = origin_of(address)
    except InvalidQuestion:
        return
    assert origin != origin_of(other)


@pytest.mark.parametrize("character", list("%<>^|\";,'*`{}!$&()+=~"))
def test_host_with_forbidden_character_is_refused(character: str) -> None:
    with pytest.raises(InvalidQuestion):
        origin_of(f"https://a{character}b.example")


@pytest.mark.parametrize(
    "character", ["\uff1b", "\uff0541", "\uff3c", "\u00a0", "\uff0f", "\u202e", "\u3000"]
)
def test_host_with_character_normalizing_to_another_is_refused(character: str) -> None:
    with pytest.raises(InvalidQuestion):
        origin_of(f"https://a{character}b.example")


@pytest.mark.parametrize("host", [".", "..", "a..b", ".example"])
def test_host_with_empty_label_is_refused(host: str) -> None:
    with pytest.raises(InvalidQuestion):
        origin_of(f"https://{host}/")


@pytest.mark.parametrize("host", ["[v1.example.com]", "[fe80::1%25eth0]"])
def test_brackets_without_ipv6_address_are_refused(host: str) -> None:
    with pytest.raises(InvalidQuestion):
        origin_of(f"https://{host}/")


@pytest.mark.parametrize(
    "character", ["\x85", "\x9b", "\u2028", "\u2029", "\u202e", "\u2066", "\ufeff"]
)
def test_control_characters_in_address_are_refused(character: str) -> None:
    with pytest.raises(InvalidQuestion):
        origin_of(f"https://example.com/{character}")


@pytest.mark.parametrize("path", ["日本", "ü", "?q=é"])
def test_redirect_address_is_ascii(path: str) -> None:
    try:
        question = elicit.url("Please go there.", f"https://example.com/{path}")
    except InvalidQuestion:
        return
    departure = departure_of(question.request.address(None))  # type: ignore[attr-defined]
    assert departure.isascii()


@pytest.mark.parametrize(
    ("host", "is_this_machine"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.255.255.254", True),
        ("::1", True),
        ("", False),
        ("localhost.", False),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("example.com", False),
    ],
)
def test_only_loopback_hosts_count_as_this_machine(host: str, is_this_machine: bool) -> None:
    assert is_loopback(host) is is_this_machine


@settings(deadline=None)
@given(st.text(max_size=80))
def test_random_address_raises_only_invalid_question(text: str) -> None:
    for address in (text, f"https://{text}", f"https://{text}.example/", f"http://[{text}]"):
        try:
            origin = origin_of(address)
        except InvalidQuestion:
            continue
        assert origin.startswith(("https://", "http://"))


def departure_of(url: str) -> str:
    elicitation = Elicitation(
        id="e",
        owner="o",
        kind="url",
        request=Asked(server="s", tool="t", client=None, message="m", digest="d", url=url),
        dedupe_key="j",
        created_at=NOON,
        expires_at=NOON,
    )
    context = RedirectContext(number=1, return_url="", state="", now=NOON)
    assert VisitFlow().prepare(elicitation, context) is None
    talk = VisitFlow().begin(elicitation, context)
    with pytest.raises(StopIteration) as stop:
        next(talk)
    return stop.value.value.url  # type: ignore[no-any-return]  # StopIteration knows no type


def test_redirect_address_of_visit_is_unchanged() -> None:
    assert departure_of("https://example.com/x") == "https://example.com/x"
