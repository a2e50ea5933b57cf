"""Attacks on identity: forwarded links, people with the same name, and guessed codes."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from msgspec import structs

from flows.crypto.tokens import Tokens
from flows.elicitation import user_code as bindings
from flows.elicitation.states import Asked, Elicitation
from flows.elicitation.user_code import (
    SHOWN_AT_MOST,
    USER_CODE_CHARACTERS,
    WRONG_AT_MOST,
    BrowserBinding,
    UserCodeGenerator,
)
from flows.errors import InvalidToken, NotAllowed, TooManyAttempts
from flows.oauth.sign_in import SignedIn
from tests.support.clock import NOON, Clock
from tests.support.sessions import ALICE, ISSUER, RING, jar
from webapp.elicitations.service import Elicitations
from webapp.elicitations.waiters import Waiters
from webapp.http.browser import Browser
from webapp.http.exchange import PEER_KEY
from webapp.identity.identity import Access, Caller, Identity, IdentityRules, Subject
from webapp.identity.local_peer import Peer
from webapp.identity.sessions import LOCAL_ISSUER, Pairing, Sessions, address_of, key_of
from webapp.records.owners import open_owners
from webapp.stores.sqlite import MemoryStore

HERE = "http://127.0.0.1:8765"
OUR_UID, ANOTHER_UID, UNKNOWN = 1000, 1001, 0
OTHER_ISSUER = "https://login.evil.example"
ELSEWHERE = ("203.0.113.9", 40000)
MALLORY = SignedIn(issuer=ISSUER, subject="mallory", label="Mallory")
FROM_ALICE = Subject(issuer=ISSUER, subject="alice", client_id="an assistant")
CODES = UserCodeGenerator(lambda: [b"k" * 32])


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The identity service and its parts."""

    identity: Identity
    sessions: Sessions
    browser: Browser
    pairing: Pairing
    tokens: Tokens
    clock: Clock

    def pairing_token(self) -> str:
        """Return the token in the address that is printed for the server's operator."""
        return address_of(self.tokens, url=HERE, now=self.clock()).rsplit("/", 1)[1]

    async def signed_in(self, who: SignedIn) -> dict[str, str]:
        """Return the cookies of a browser in which this person signed in."""
        return jar(self.sessions.set_cookie(await self.sessions.start(who, cookies={})))

    async def access(
        self, asked: Elicitation, *, cookies: Mapping[str, str] | None = None, **changes: Any
    ) -> Access:
        decision = await self.identity.access(asked, scope(**changes), cookies or {})
        assert decision.is_open == (decision.access is Access.OPEN)
        return decision.access


async def world(rules: IdentityRules | None = None, *, url: str = HERE) -> World:
    rules, store, clock = rules or IdentityRules(), MemoryStore(), Clock()
    owners = await open_owners(store=store, ring=RING)
    tokens = Tokens(RING, origin=url)
    browser = Browser(public_url=url, csrf_keys=lambda: [b"c" * 32])
    elicitations = Elicitations(store=store, owners=owners, waiters=Waiters(), clock=clock)
    identity = Identity(
        elicitations,
        ring=RING,
        tokens=tokens,
        browser=browser,
        public_url=url,
        uid=OUR_UID,
        rules=rules,
    )
    return World(
        identity=identity,
        sessions=identity.sessions,
        browser=browser,
        pairing=identity.pairing,
        tokens=tokens,
        clock=clock,
    )


def scope(
    *, uid: int = OUR_UID, client: tuple[str, int] | None = None, **headers: str
) -> dict[str, Any]:
    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return {
        "type": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"127.0.0.1:8765"), *named],
        "client": client or ("127.0.0.1", 40000),
        "server": ("127.0.0.1", 8765),
        PEER_KEY: Peer(uid=uid or None),
    }


def asked_by(caller: Caller) -> Elicitation:
    owner = caller.owner or "of-the-run"
    asked = Asked(
        server="shop", tool="buy", client=caller.client, message="Go", digest="d", url=None
    )
    return Elicitation(
        id=f"{owner}-and-an-id",
        owner=owner,
        kind="url",
        request=asked,
        dedupe_key="j",
        created_at=NOON,
        expires_at=NOON + timedelta(minutes=5),
        is_by_code=caller.by_code,
    )


def with_binding(asked: Elicitation, binding: BrowserBinding) -> Elicitation:
    return structs.replace(asked, binding=binding)


async def test_forwarded_link_is_refused_for_another_signed_in_person():
    # defect: mcp-authkit forwarded link
    here = await world(IdentityRules(issuers={ISSUER: ("sub",)}))
    asked = asked_by(here.identity.caller(scope(), subject=FROM_ALICE, client="c"))
    assert await here.access(asked, cookies=await here.signed_in(ALICE)) is Access.OPEN
    victim = await here.signed_in(MALLORY)
    assert await here.access(asked, cookies=victim) is Access.OTHER_PERSON
    assert await here.access(asked, cookies=victim, client=ELSEWHERE) is Access.OTHER_PERSON


async def test_forwarded_link_offers_only_sign_in_to_unknown_person():
    here = await world(IdentityRules(issuers={ISSUER: ("sub",)}))
    asked = asked_by(here.identity.caller(scope(), subject=FROM_ALICE, client="c"))
    # The first case is this machine's own user, who is identified by the connection.
    ways: list[dict[str, Any]]
    ways = [{}, {"client": ELSEWHERE}, {"uid": ANOTHER_UID}, {"via": "1.1 relay"}]
    for changes in ways:
        assert await here.access(asked, **changes) is Access.SIGN_IN
    alice = await here.signed_in(ALICE)
    here.clock.tick(hours=9)
    assert await here.access(asked, cookies=alice) is Access.SIGN_IN


async def test_local_link_opens_only_for_local_user():
    here = await world()
    asked = asked_by(here.identity.caller(scope(), subject=None, client="c"))
    assert await here.access(asked) is Access.OPEN
    elsewhere: list[dict[str, Any]] = [
        {"client": ELSEWHERE},
        {"uid": ANOTHER_UID},
        {"via": "1.1 relay"},
        {"x_forwarded_for": "203.0.113.9"},
        {"forwarded": "for=203.0.113.9"},
        {"cf_ray": "x"},
    ]
    for changes in elsewhere:
        access = await here.access(asked, **changes)
        assert access in (Access.PAIR, Access.HERE_ONLY), changes
    assert await here.access(asked, uid=ANOTHER_UID) is Access.HERE_ONLY
    over_stdio = asked_by(here.identity.caller(None, subject=None, client="c"))
    assert await here.access(over_stdio, uid=ANOTHER_UID) is Access.HERE_ONLY


async def test_local_link_does_not_open_for_remote_signed_in_person():
    here = await world(IdentityRules(issuers={ISSUER: ("sub",)}))
    asked = asked_by(here.identity.caller(scope(), subject=None, client="c"))
    alice = await here.signed_in(ALICE)
    assert await here.access(asked, cookies=alice, client=ELSEWHERE) is Access.HERE_ONLY
    assert await here.access(asked, cookies=alice, uid=ANOTHER_UID) is Access.HERE_ONLY


async def test_caller_with_token_is_refused_where_sign_in_is_not_configured():
    here = await world()
    caller = here.identity.caller(scope(), subject=FROM_ALICE, client="c")
    with pytest.raises(NotAllowed, match="ELICIT_ISSUER") as refused:
        caller.must_be_answerable("url")
    assert "ELICIT_BIND=code" in str(refused.value)
    # A link created before the setting was removed opens for nobody, either.
    for client in (None, ELSEWHERE):
        assert await here.access(asked_by(caller), client=client) is Access.HERE_ONLY


async def test_caller_with_token_of_another_issuer_is_refused():
    here = await world(IdentityRules(issuers={ISSUER: ("sub",)}))
    subject = replace(FROM_ALICE, issuer=OTHER_ISSUER)
    caller = here.identity.caller(scope(), subject=subject, client="c")
    with pytest.raises(NotAllowed):
        caller.must_be_answerable("url")


async def test_anonymous_caller_is_refused():
    here = await world()
    nameless = replace(FROM_ALICE, subject=None)
    for given, subject in ((scope(client=ELSEWHERE), None), (scope(), nameless)):
        caller = here.identity.caller(given, subject=subject, client="c")
        for kind in ("url", "oauth", "payment", "secret", "form"):
            with pytest.raises(NotAllowed):
                caller.must_be_answerable(kind)


async def test_anonymous_caller_gets_no_accounts_or_secrets_even_with_code():
    here = await world(IdentityRules(asks_anonymous=True))
    caller = here.identity.caller(scope(client=ELSEWHERE), subject=None, client="c")
    assert caller.by_code
    for kind in ("oauth", "secret"):
        with pytest.raises(NotAllowed):
            caller.must_be_answerable(kind)
    with pytest.raises(NotAllowed):
        caller.must_be_known()


async def test_link_bound_by_code_opens_only_in_confirmed_browser():
    here = await world(IdentityRules(binds_by_code=True))
    asked = asked_by(here.identity.caller(scope(), subject=FROM_ALICE, client="c"))
    alices, victims = here.browser.fresh(), here.browser.fresh()
    at_alices = {here.browser.cookie_name: alices}
    at_victims = {here.browser.cookie_name: victims}
    for cookies in ({}, at_alices, at_victims):
        assert await here.access(asked, cookies=cookies) is Access.CODE
    hers = bindings.bind(None, browser=here.browser.hash(alices))
    shown = CODES.user_code(asked.id, hers.codes[0])
    # The victim opens the link too: a code that the asker typed for her own page is useless there.
    binding = bindings.bind(hers, browser=here.browser.hash(victims))
    for cookies in (at_alices, at_victims):
        assert await here.access(with_binding(asked, binding), cookies=cookies) is Access.CODE
    confirmed = CODES.confirm(asked.id, binding, typed=shown, now=NOON)
    assert await here.access(with_binding(asked, confirmed), cookies=at_alices) is Access.OPEN
    for cookies in ({}, at_victims):
        access = await here.access(with_binding(asked, confirmed), cookies=cookies)
        assert access is Access.OTHER_BROWSER


async def test_local_or_signed_in_access_does_not_replace_the_code():
    here = await world(IdentityRules(issuers={ISSUER: ("sub",)}, binds_by_code=True))
    subject = replace(FROM_ALICE, issuer=OTHER_ISSUER)
    asked = asked_by(here.identity.caller(scope(), subject=subject, client="c"))
    assert asked.is_by_code
    for cookies in ({}, await here.signed_in(ALICE)):
        assert await here.access(asked, cookies=cookies) is Access.CODE


def test_allowed_guesses_cover_one_in_170_million_codes():
    codes = len(bindings.ALPHABET) ** USER_CODE_CHARACTERS
    assert codes // (WRONG_AT_MOST * SHOWN_AT_MOST) >= 170_000_000
    bound = bindings.bind(None, browser="the victim's")
    for guess in range(WRONG_AT_MOST):
        bound = CODES.confirm("e", bound, typed=f"guess {guess}", now=NOON)
    with pytest.raises(TooManyAttempts):
        CODES.confirm("e", bound, typed=CODES.user_code("e", bound.codes[-1]), now=NOON)
    assert bound.confirmed_at is None


def test_codes_differ_between_questions_and_numbers():
    bound = bindings.bind(None, browser="b")
    characters = [CODES.user_code(f"e{number}", bound.codes[-1]) for number in range(200)]
    for number in range(9):
        characters.append(CODES.user_code("e", bound.codes[-1]))
        bound = bindings.bind(bound, browser=f"browser {number}")
    assert len(set(characters)) == len(characters)


async def test_same_subject_at_another_issuer_is_another_owner():
    here = await world(IdentityRules(issuers={ISSUER: ("sub",)}, binds_by_code=True))
    owners = set()
    pairs = [
        (ISSUER, "alice"),
        (OTHER_ISSUER, "alice"),
        (ISSUER, "Alice"),
        (ISSUER + "/", "alice"),
        (ISSUER + "a", "lice"),
        (ISSUER, "alice "),
    ]
    for issuer, name in pairs:
        subject = Subject(issuer=issuer, subject=name, client_id="c")
        owners.add(here.identity.caller(scope(), subject=subject, client="c").owner)
    assert len(owners) == len(pairs)


async def test_namesake_at_same_issuer_is_another_person():
    here = await world(IdentityRules(issuers={ISSUER: ("sub",)}))
    asked = asked_by(here.identity.caller(scope(), subject=FROM_ALICE, client="c"))
    label = "alice@example.com"
    alice = SignedIn(issuer=ISSUER, subject="alice", label=label)
    namesake_of_hers = SignedIn(issuer=ISSUER, subject="alice-2", label=label)
    assert await here.access(asked, cookies=await here.signed_in(alice)) is Access.OPEN
    assert (
        await here.access(asked, cookies=await here.signed_in(namesake_of_hers))
        is Access.OTHER_PERSON
    )


async def test_token_claiming_local_issuer_identifies_no_person():
    for rules in (
        IdentityRules(),
        IdentityRules(issuers={ISSUER: ("sub",)}),
        IdentityRules(binds_by_code=True),
    ):
        here = await world(rules)
        subject = Subject(issuer=LOCAL_ISSUER, subject=f"uid:{OUR_UID}", client_id="c")
        caller = here.identity.caller(scope(client=ELSEWHERE), subject=subject, client="c")
        assert caller.owner is None
        with pytest.raises(NotAllowed):
            caller.must_be_known()


async def test_cookie_of_paired_browser_is_refused_for_another_machine_user():
    here = await world()
    asked = asked_by(here.identity.caller(None, subject=None, client="c"))
    token = here.pairing_token()
    paired = await here.signed_in(await here.pairing.use(token))
    assert await here.access(asked, cookies=paired, uid=UNKNOWN) is Access.OPEN
    assert await here.access(asked, cookies=paired, uid=ANOTHER_UID) is Access.HERE_ONLY
    assert await here.access(asked, uid=UNKNOWN) is Access.PAIR


async def test_pairing_is_refused_on_public_address_or_with_sign_in():
    for here in (
        await world(IdentityRules(issuers={ISSUER: ("sub",)})),
        await world(url="https://tools.example"),
    ):
        token = here.pairing_token()
        with pytest.raises(InvalidToken):
            await here.pairing.use(token)
        given = scope(client=ELSEWHERE, authorization=f"Bearer {key_of(RING)}")
        caller = here.identity.caller(given, subject=None, client="c")
        assert caller.owner is None


async def test_pairing_address_is_used_up_by_use_or_expiry_only():
    here = await world()
    token, later = (here.pairing_token() for _ in range(2))
    for _ in range(3):  # a scanner
        assert await here.pairing.can_use(token)
    await here.pairing.use(token)
    assert not await here.pairing.can_use(token)
    with pytest.raises(InvalidToken):
        await here.pairing.use(token)
    here.clock.tick(minutes=11)
    assert not await here.pairing.can_use(later)


async def test_wrong_or_partial_local_key_is_refused():
    here = await world()
    key = key_of(RING)
    for wrong in ("", key[:-1], key + "x", key.upper(), "elicit_local_", f"{key} {key}"):
        sent = scope(client=ELSEWHERE, authorization=f"Bearer {wrong}")
        assert here.identity.caller(sent, subject=None, client="c").owner is None
    twice = scope(client=ELSEWHERE, authorization=f"Bearer {key}")
    twice["headers"].append((b"authorization", f"Bearer {key}".encode()))
    assert here.identity.caller(twice, subject=None, client="c").owner is None


async def test_two_anonymous_callers_share_no_owner():
    here = await world(IdentityRules(asks_anonymous=True))
    for given in (scope(client=ELSEWHERE), scope(uid=ANOTHER_UID)):
        caller = here.identity.caller(given, subject=None, client="c")
        assert caller.owner is None
        assert caller.by_code


async def test_in_process_call_is_local_user_only_without_public_address() -> None:
    here = (await world()).identity
    assert here.caller(None, subject=None, client="c").owner == here.local_owner
    reached = (await world(url="https://tools.example.com")).identity
    inside = reached.caller(None, subject=None, client="c")
    assert inside.is_anonymous
    assert "inside the server's own process" in (inside.refusal or "")
