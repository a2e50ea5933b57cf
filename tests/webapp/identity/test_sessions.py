"""Sign-in sessions: a sealed cookie with limits, new at each sign-in, invalid after sign-out."""

from typing import Any

import pytest

from flows.crypto.tokens import Ring
from flows.oauth.sign_in import SignedIn
from tests.support.clock import Clock
from tests.support.sessions import ATTEMPT_DATA, ISSUER, LOCAL, URL, jar, sessions_of, signed_in
from webapp.identity.sessions import ENDED, Sessions
from webapp.records.owners import SERVICE
from webapp.stores.sqlite import MemoryStore, SqliteStore


@pytest.fixture
def sessions(store: MemoryStore, clock: Clock) -> Sessions:
    return sessions_of(store, clock)


async def test_signed_in_browser_is_recognized(sessions: Sessions, clock: Clock) -> None:
    cookies = await signed_in(sessions)
    session = await sessions.of(cookies)
    assert session is not None
    assert (session.issuer, session.subject, session.label) == (ISSUER, "alice", "Alice")
    assert session.signed_in_at == session.seen_at == clock.now
    assert repr(session) == "BrowserSession(***)"


async def test_session_cookie_is_encrypted(sessions: Sessions) -> None:
    (text,) = (await signed_in(sessions)).values()
    assert "alice" not in text.lower()
    assert len(text) < 1000


async def test_missing_or_invalid_cookie_gives_no_session(sessions: Sessions) -> None:
    for value in (None, "", "x", "x" * 5000, "é", "a.b"):
        cookies = {} if value is None else {sessions.cookie_name: value}
        assert await sessions.of(cookies) is None
        assert (
            sessions.sign_in_state({sessions.sign_in_cookie_name: value} if value else {}) is None
        )


async def test_session_ends_after_eight_hours_without_visit(
    sessions: Sessions, clock: Clock
) -> None:
    cookies = await signed_in(sessions)
    clock.tick(hours=7, minutes=59)
    assert await sessions.of(cookies) is not None
    clock.tick(minutes=1)
    assert await sessions.of(cookies) is None


@pytest.mark.parametrize(("hours", "is_known"), [(-2, True), (2, True), (8, False)])
async def test_session_ends_only_if_the_clock_jumps_eight_hours(
    sessions: Sessions, clock: Clock, hours: int, is_known: bool
) -> None:
    # finding: H2
    cookies = await signed_in(sessions)
    clock.set(hours=hours)
    assert (await sessions.of(cookies) is not None) is is_known


async def test_visits_extend_session_up_to_seven_days(sessions: Sessions, clock: Clock) -> None:
    cookies = await signed_in(sessions)
    began, hours = clock.now, 0
    while (session := await sessions.of(cookies)) is not None and hours < 1000:
        renewed = sessions.renewed(session)
        if renewed is not None:
            cookies = jar(renewed)
        clock.tick(hours=1)
        hours += 1
    assert hours == 7 * 24
    assert (clock.now - began).days == 7


async def test_cookie_is_renewed_every_five_minutes(sessions: Sessions, clock: Clock) -> None:
    cookies = await signed_in(sessions)
    clock.tick(minutes=4)
    session = await sessions.of(cookies)
    assert session is not None
    assert sessions.renewed(session) is None
    clock.tick(minutes=1)
    renewed = sessions.renewed(session)
    assert renewed is not None
    again = await sessions.of(jar(renewed))
    assert again is not None
    assert (again.id, again.signed_in_at) == (session.id, session.signed_in_at)
    assert again.seen_at == clock.now


async def test_sign_out_clears_cookie_and_stores_row_until_session_limit(
    sessions: Sessions, store: MemoryStore, clock: Clock
) -> None:
    cookies = await signed_in(sessions)
    session = await sessions.of(cookies)
    header = await sessions.end(session)
    assert jar(header) == {}
    assert await sessions.of(cookies) is None
    assert await sessions.end(session) == header  # a second tab signs out too
    (row,) = await store.list(ENDED)
    assert row.owner == SERVICE
    assert row.erase_at == clock.tick(days=7)
    assert await store.erase(before=clock.now) == 1
    assert await sessions.of(cookies) is None  # the cookie itself has expired
    assert jar(await sessions.end(None)) == {}


async def test_sign_out_is_valid_in_every_process_and_after_restart(
    clock: Clock, tmp_path: Any
) -> None:
    store = await SqliteStore.open(tmp_path / "elicit.db")
    cookies = await signed_in(sessions_of(store, clock))
    await sessions_of(store, clock).end(await sessions_of(store, clock).of(cookies))
    await store.aclose()
    again = await SqliteStore.open(tmp_path / "elicit.db")
    assert await sessions_of(again, clock).of(cookies) is None
    await again.aclose()


async def test_new_sign_in_creates_session_and_ends_earlier_session(
    sessions: Sessions,
) -> None:
    before = await signed_in(sessions)
    after = await signed_in(sessions, cookies=before)
    assert await sessions.of(before) is None
    assert await sessions.of(after) is not None


async def test_session_of_other_issuer_is_unknown(
    sessions: Sessions, store: MemoryStore, clock: Clock
) -> None:
    cookies = await signed_in(sessions)
    moved = sessions_of(store, clock, issuers=("https://login.example.org",))
    assert await moved.of(cookies) is None


async def test_session_survives_rotation_of_secrets(store: MemoryStore, clock: Clock) -> None:
    old, new = b"an old secret, thirty-two bytes!", b"a new secret of thirty-two bytes"
    cookies = await signed_in(sessions_of(store, clock, ring=Ring([old])))
    assert await sessions_of(store, clock, ring=Ring([new, old])).of(cookies) is not None
    assert await sessions_of(store, clock, ring=Ring([new])).of(cookies) is None


def test_cookies_are_limited_to_own_pages(store: MemoryStore, clock: Clock) -> None:
    there, here = (sessions_of(store, clock, public_url=url) for url in (URL, LOCAL))
    header = there.sign_in_cookie(ATTEMPT_DATA, back="/e/x")
    assert header.startswith("__Host-elicit-signin=")
    assert header.endswith("; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure")
    assert there.cookie_name == "__Host-elicit-session"
    assert here.sign_in_cookie(ATTEMPT_DATA, back="/").endswith("; HttpOnly; SameSite=Lax")
    assert (here.cookie_name, here.sign_in_cookie_name) == (
        "elicit_session_8765",
        "elicit_signin_8765",
    )


def test_sign_in_state_is_returned_once_within_ten_minutes(
    sessions: Sessions, clock: Clock
) -> None:
    cookies = jar(sessions.sign_in_cookie(ATTEMPT_DATA, back="/e/token"))
    left = sessions.sign_in_state(cookies)
    assert left is not None
    assert (left.kept, left.back) == (ATTEMPT_DATA, "/e/token")
    assert "n" * 32 not in repr(left) + str(cookies)
    assert (
        jar(*(sessions.sign_in_cookie(ATTEMPT_DATA, back="/"), sessions.clear_sign_in_cookie()))
        == {}
    )
    clock.tick(minutes=10)
    assert sessions.sign_in_state(cookies) is None


@pytest.mark.parametrize(
    "back",
    [
        "https://evil.example/",
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "e/x",
        "",
        "/e/x\r\nSet-Cookie: a=b",
        "/é",
        "/" + "x" * 1000,
    ],
)
def test_unsafe_return_path_is_replaced_with_home(sessions: Sessions, back: str) -> None:
    left = sessions.sign_in_state(jar(sessions.sign_in_cookie(ATTEMPT_DATA, back=back)))
    assert left is not None
    assert left.back == "/"


async def test_longest_subject_and_path_fit_in_cookies(sessions: Sessions, clock: Clock) -> None:
    subject = '{"oid":"' + "o" * 255 + '","tid":"' + "t" * 255 + '"}'
    longest = SignedIn(issuer=ISSUER, subject=subject, label="é" * 80)
    session = await sessions.of(await signed_in(sessions, longest))
    assert session is not None
    assert session.subject == subject
    path = "/e/" + "x" * 990
    left = sessions.sign_in_state(jar(sessions.sign_in_cookie(ATTEMPT_DATA, back=path)))
    assert left is not None
    assert left.back == path
