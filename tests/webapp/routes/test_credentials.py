"""Credentials in a browser's requests: each valid one is identified, for its own rate limit."""

from collections.abc import AsyncIterator

import pytest

from flows.crypto.tokens import Claims, Purpose
from flows.oauth.sign_in import SignedIn
from tests.support.clock import Clock
from tests.support.service_env import asked, process
from webapp.http.exchange import Scope
from webapp.identity.sessions import IDLE_AT_MOST, LOCAL_ISSUER
from webapp.routes.page_request import credential_of
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def service(clock: Clock) -> AsyncIterator[Service]:
    async with process(MemoryStore(), clock) as service:
        yield service


def scope(path: str, *, query: str = "", cookie: str = "") -> Scope:
    headers = [(b"cookie", cookie.encode())] if cookie else []
    return {
        "type": "http",
        "path": path,
        "query_string": query.encode(),
        "headers": headers,
        "client": ("203.0.113.7", 5),
    }


async def test_link_and_callback_are_identified_by_question(service: Service, clock: Clock) -> None:
    # finding: XS5
    one = await asked(service)
    link = service.links.of(one, now=clock()).rpartition("/")[2]
    author = service.links.for_author(elicitation_id=one.id, expires_at=one.expires_at, now=clock())
    claims = Claims(purpose=Purpose.STATE, id=one.id, expires_at=one.expires_at)
    state = service.links.state(claims, now=clock())
    callback = author.callback_url.rpartition("/")[2]
    for came in (
        scope(f"/e/{link}"),
        scope(f"/e/{link}/decline"),
        scope("/callback/github", query=f"state={state}&code=c"),
        scope("/return", query=f"elicitation={author.return_token}"),
        scope(f"/callback/url/{callback}"),
    ):
        assert credential_of(service, came) == f"link {one.id}"
    for made_up in (
        scope("/e/"),
        scope("/e/x"),
        scope(f"/e/{link.swapcase()}"),
        scope(f"/e/{state}"),
        scope("/callback/github", query=f"state={link}"),
        scope("/callback/github", query="state=x"),
        scope("/inbox"),
    ):
        assert credential_of(service, made_up) is None
    clock.tick(days=9)
    assert credential_of(service, scope(f"/e/{link}")) is None


async def test_session_cookie_is_identified_until_session_expires(
    service: Service, clock: Clock
) -> None:
    # finding: XS5
    person = SignedIn(issuer=LOCAL_ISSUER, subject="ann", label="Ann")
    sessions = service.identity.sessions
    session = await sessions.start(person, cookies={})
    cookie = sessions.set_cookie(session).partition(";")[0]
    assert credential_of(service, scope("/inbox", cookie=cookie)) == f"session {session.id}"
    other = await sessions.start(person, cookies={})
    assert other.id not in str(credential_of(service, scope("/inbox", cookie=cookie)))
    assert credential_of(service, scope("/inbox", cookie=f"{cookie}x")) is None
    padded = f"a={'x' * 9000}; {cookie}"
    assert credential_of(service, scope("/inbox", cookie=padded)) is None
    clock.tick(seconds=IDLE_AT_MOST.total_seconds() + 1)
    assert credential_of(service, scope("/inbox", cookie=cookie)) is None


async def test_browser_returning_from_sign_in_is_identified(service: Service) -> None:
    # finding: XS5
    first, second = (
        service.identity.sessions.sign_in_cookie({"n": n}, back="/inbox").partition(";")[0]
        for n in (1, 2)
    )
    known = {
        credential_of(service, scope("/signin/callback", query="code=c", cookie=each))
        for each in (first, second)
    }
    assert len(known) == 2
    assert None not in known
