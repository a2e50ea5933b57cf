"""Browser security: one cookie, one CSRF field for each form, and strict headers."""

import re

import pytest

from webapp.http.browser import Browser, page_headers

KEY = b"k" * 32
HTTPS = "https://elicit.example"
LOCAL = "http://127.0.0.1:8765"
HELD = {"elicit_8765": "v" * 32}


def browser(url: str = LOCAL, *, key: bytes = KEY) -> Browser:
    return Browser(public_url=url, csrf_keys=lambda: [key])


def test_https_cookie_is_bound_to_host() -> None:
    cookies = browser(HTTPS).set_cookies("v" * 32)
    assert cookies[0].startswith("__Host-elicit=" + "v" * 32 + "; ")
    for cookie in cookies:
        assert {"Secure", "HttpOnly", "SameSite=Lax", "Path=/"} <= set(cookie.split("; "))
        assert "Domain" not in cookie
        assert not cookie.clears


def test_servers_on_loopback_ports_have_separate_cookies() -> None:
    names = {browser(f"http://127.0.0.1:{port}").cookie_name for port in (8765, 8766, 80)}
    assert names == {"elicit_8765", "elicit_8766", "elicit_80"}
    assert browser("http://127.0.0.1").cookie_name == "elicit_80"
    for cookie in browser().set_cookies("v"):
        assert "Secure" not in cookie
        assert "HttpOnly" in cookie
        # finding: S15
        assert cookie.clears, "the cookie clears data of a program that used this port before"


def test_cookie_planted_from_another_port_clears_stored_data() -> None:
    # finding: S15
    own_browser, value = browser(), "v" * 32
    planted = {own_browser.cookie_name: value}
    sets = own_browser.marks(value, planted)
    assert sets
    assert all(cookie.clears for cookie in sets)
    name, _, mark = sets[0].partition(";")[0].partition("=")
    assert own_browser.marks(value, planted | {name: mark}) == ()
    assert own_browser.marks("w" * 32, planted | {name: mark}), (
        "a mark made for another cookie value is not accepted"
    )
    assert own_browser.cookie_of(planted | {name: mark}) == value
    assert not browser(HTTPS).marks(value, {}), (
        "an HTTPS host needs no mark: no other server can set its cookie"
    )


def test_fresh_cookie_is_unique_and_valid_in_header() -> None:
    fresh = {browser().fresh() for _ in range(200)}
    assert len(fresh) == 200
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{32}", value) for value in fresh)


@pytest.mark.parametrize("value", ["", "x", "v" * 31, "v" * 33, "v" * 4096])
def test_cookie_of_wrong_length_is_ignored(value: str) -> None:
    mine = browser()
    assert mine.cookie_of({mine.cookie_name: value}) is None


def test_cookies_of_other_servers_are_ignored() -> None:
    mine = browser()
    assert mine.cookie_of({}) is None
    assert mine.cookie_of({"elicit_8766": "v" * 32, "__Host-elicit": "v" * 32}) is None
    assert mine.cookie_of({mine.cookie_name: "v" * 32}) == "v" * 32


def test_stored_hash_does_not_reveal_cookie() -> None:
    mine = browser()
    hashed = mine.hash("v" * 32)
    assert "v" * 8 not in hashed
    assert hashed == mine.hash("v" * 32)
    assert hashed != mine.hash("w" * 32)


def test_csrf_field_is_valid_for_its_cookie_and_subject_only() -> None:
    mine = browser()
    field = mine.csrf("v" * 32, subject="e-1")
    assert mine.is_csrf(field, HELD, subject="e-1")
    assert not mine.is_csrf(field, HELD, subject="e-2")
    assert not mine.is_csrf(field, {mine.cookie_name: "w" * 32}, subject="e-1")
    assert not mine.is_csrf(field, {mine.cookie_name: ""}, subject="e-1")
    assert not mine.is_csrf(field, {}, subject="e-1")
    assert not browser(key=b"x" * 32).is_csrf(field, HELD, subject="e-1")


def jar(*headers: str) -> dict[str, str]:
    """Return the cookies that a browser stores after these Set-Cookie headers."""
    return dict(header.split("; ")[0].split("=", 1) for header in headers)


def test_pages_opened_at_once_in_new_browser_share_identity() -> None:
    # finding: R15
    mine = browser()
    values = [mine.fresh() for _ in range(10)]
    held = jar(*(header for value in values for header in mine.set_cookies(value)))
    assert mine.cookie_of(held) == values[-1]
    for value in values:
        assert mine.is_csrf(mine.csrf(value, subject="e-1"), held, subject="e-1")
        assert mine.is_same(mine.hash(value), held)
        assert mine.hash_of(held, known=mine.hash(value)) == mine.hash(value)
    assert not mine.is_same(mine.hash(mine.fresh()), held)


def test_planted_cookies_are_read_up_to_limit_and_only_under_own_name() -> None:
    mine = browser()
    planted = jar(*(header for _ in range(3) for header in mine.set_cookies(mine.fresh())[1:]))
    assert mine.cookie_of(planted) == next(iter(planted.values()))
    assert mine.cookie_of({f"{mine.cookie_name}_x": "v" * 32}) is None
    many = jar(*(header for _ in range(99) for header in mine.set_cookies(mine.fresh())[1:]))
    assert sum(mine.is_same(mine.hash(value), many) for value in many.values()) == 32


@pytest.mark.parametrize("value", ["", "x", "é", "\ud800", "\x00", "0" * 64, "a" * 1_000_000])
def test_invalid_csrf_field_is_refused(value: str) -> None:
    mine = browser()
    assert not mine.is_csrf(value, HELD, subject="e-1")
    field = mine.csrf("v" * 32, subject="e-1")
    assert not mine.is_csrf(field + value + "x", HELD, subject="e-1")
    assert not mine.is_csrf(field.upper(), HELD, subject="e-1")


def test_csrf_field_depends_on_boundary_between_cookie_and_subject() -> None:
    mine = browser()
    assert mine.csrf("a\nb", subject="c") != mine.csrf("a", subject="b\nc")


def test_page_loads_no_external_resource_and_cannot_be_framed() -> None:
    headers = page_headers()
    policy = dict(
        directive.strip().split(" ", 1)
        for directive in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["base-uri"] == "'none'"
    assert policy["form-action"] == "'self'"
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"


def test_page_sends_no_referrer_and_is_not_cached() -> None:
    headers = page_headers()
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-robots-tag"] == "noindex"
    # finding: XS11
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "camera=(), " in headers["permissions-policy"]
    assert "clipboard-write" not in headers["permissions-policy"]


def test_content_security_policy_names_form_targets() -> None:
    headers = page_headers(form_targets=["https://a.example", "https://b.example:8443"])
    policy = headers["content-security-policy"]
    assert "form-action 'self' https://a.example https://b.example:8443;" in policy
    assert policy.count(";") == page_headers()["content-security-policy"].count(";")
