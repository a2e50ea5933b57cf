"""Authentication of API requests by a program, a program acting for a person, or a person.

A program sends an API key. It may add the access token of the person that it acts for. A person
sends only their own access token.

Risks: an attacker guesses keys, or a program sends too many requests. So guesses are rate-limited
by network address before the store is read, and every program and person has one rate limit for
all their keys and tokens. Other callers at the same address never slow a valid key down. A key in
a URL would end up in logs, and a page could use a key in a cookie, so both are ignored. A program
could act for a person who did not authorize it, so the verifier of `/mcp` checks the person's
token with every request and again while a response is pending. An assistant could decide in the
person's place with a token that was made for its tool calls, so the API requires tokens that were
made for the API (`TokenUses`).
"""

import logging
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeAlias, cast

from litestar.connection import ASGIConnection
from litestar.di import NamedDependency
from litestar.handlers import BaseRouteHandler
from litestar.openapi.spec import SecurityRequirement

from flows.errors import ElicitError, Failed, NotAllowed, NotConfigured
from flows.oauth.access_token import BadBearer, TokenUse
from webapp.deadline import Clock
from webapp.http.exchange import facts_of
from webapp.http.parts import AnyRequest, part
from webapp.http.rate_limit import ConcurrencyLimit, Rates, TooOften, address_key
from webapp.identity.access_tokens import Verifier, header_value, log_refusal, subject_of
from webapp.identity.api_keys import PREFIX, ApiKeyRefused, KeyScope, is_key
from webapp.identity.identity import Caller
from webapp.records.ids import tail_of
from webapp.records.values import ApiKey
from webapp.service import Service
from webapp.telemetry.families import Observer

PERSON_HEADER: Final = "User-Access-Token"
REQUESTS_AT_ONCE: Final = 100
BETWEEN_REQUESTS: Final = timedelta(milliseconds=100)
REFUSED_AT_ONCE: Final = 30  # per address
BETWEEN_REFUSED: Final = timedelta(seconds=1)
OPEN_AT_ONCE: Final = 300  # open requests per caller, most of them waiting; 1/3 of all connections
PROXIED_AT_ONCE: Final = 8  # per program
PROXIED_AT_ONCE_IN_ALL: Final = 32  # all programs share the outbound HTTP client
_AUTHORIZATION: Final = "Authorization"
_FOUND: Final = "elicit_url.requester"
_SLOT: Final = "elicit_url.room"
HELD_BACK: Final = "held_back"
_BAD: Final = (401, "has expired, is damaged, or was issued for another server")
_REFUSED: Final = {
    "invalid_request": (400, "must be sent once, in this header only, and never in a URL"),
    "insufficient_scope": (403, "that was issued for another audience is not valid here"),
}
_AnyConnection: TypeAlias = ASGIConnection[Any, Any, Any, Any]
_log = logging.getLogger(__name__)


class AccessTokenRefused(ElicitError):
    """The access token in the named header is not accepted."""

    name = "ACCESS_TOKEN_REFUSED"
    http_status = 401

    def __init__(self, header: str, refusal: BadBearer, *, use: TokenUse) -> None:
        self.error = refusal.error or "invalid_token"
        self.status, problem = _REFUSED.get(self.error, _BAD)
        by_scope = f"the scope of {use.setting}, which the operator sets"
        super().__init__(
            f"{header}: an access token {problem}. Have the person's issuer make one for "
            f"{use.resource} (RFC 8707), or with {use.scope or by_scope}."
        )
        scope = use.scope if self.error == "insufficient_scope" else None
        asks = "" if scope is None else f', scope="{scope}"'
        self.challenge = f'Bearer error="{self.error}"{asks}'


class IssuerUnavailable(ElicitError):
    """The issuer cannot be reached to verify an access token."""

    name = "ISSUER_UNAVAILABLE"
    http_status = 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """The sender of a request: a program, a program acting for a person, or a person alone.

    `service` is the service that answers the request.
    """

    service: Service
    key: ApiKey | None = None
    person: Caller | None = None

    @property
    def program(self) -> ApiKey:
        """The program's key, for routes that require a key."""
        assert self.key is not None
        return self.key

    @property
    def who(self) -> str:
        """The identity for rate limits: the program, whichever key it uses, or the person."""
        if self.key is not None:
            return f"program {self.key.program}"
        assert self.person is not None
        return f"person {self.person.owner}"

    @property
    def asks(self) -> bool:
        return self.key is not None and KeyScope.ASK in self.key.scopes

    @property
    def name(self) -> str:
        """The caller's name in the audit log, as the lists of keys and of owners show it."""
        if self.key is not None:
            return f"key {tail_of(self.key)}"
        assert self.person is not None
        return f"person {self.person.owner}"


class TooManyOpen(TooOften):
    """The program or person has reached the limit of open requests."""

    name = "TOO_MANY_OPEN"

    def __init__(self) -> None:
        super().__init__(1)
        words = f"{OPEN_AT_ONCE} requests of this program or person are not answered yet"
        self.args = (f"{words}: close some of them.",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUses:
    """The audiences and scopes that people's access tokens must have.

    `act` applies to a token that a program sends together with its key, to ask that person. `own`
    applies to a token that a person sends instead of a key, to read their questions, approvals and
    decisions.
    """

    act: TokenUse
    own: TokenUse

    @classmethod
    def at(
        cls, public_url: str, *, act_scope: str | None = None, own_scope: str | None = None
    ) -> "TokenUses":
        return cls(
            act=TokenUse(resource=f"{public_url}/api", setting="ELICIT_API_SCOPE", scope=act_scope),
            own=TokenUse(
                resource=f"{public_url}/api/inbox", setting="ELICIT_INBOX_SCOPE", scope=own_scope
            ),
        )


class Places:
    """A limit on concurrent proxied requests, per program and in total."""

    def __init__(self) -> None:
        self._in_use = Counter[str]()

    @contextmanager
    def one(self, key: str) -> Generator[None]:
        """Occupy one slot during the block. Raises TooOften if no slot is free."""
        if self._in_use[key] >= PROXIED_AT_ONCE or self._in_use.total() >= PROXIED_AT_ONCE_IN_ALL:
            raise TooOften(1)
        self._in_use[key] += 1
        try:
            yield
        finally:
            self._in_use[key] -= 1
            if not self._in_use[key]:
                del self._in_use[key]


def slot_of(scope: Any) -> ExitStack:
    """Return a context that occupies a slot for open requests until the response is sent."""
    found: ExitStack = scope.setdefault(_SLOT, ExitStack())
    return found


class ApiLimits:
    """The rate limits of the API: per caller, and per address for refused credentials."""

    def __init__(self, *, clock: Clock, observer: Observer) -> None:
        self.known = Rates(burst=REQUESTS_AT_ONCE, every=BETWEEN_REQUESTS, clock=clock)
        self.refused = Rates(burst=REFUSED_AT_ONCE, every=BETWEEN_REFUSED, clock=clock)
        self.open = ConcurrencyLimit(OPEN_AT_ONCE)
        self.proxied = Places()
        self._observer = observer

    def note(self, address: str, *, why: str, key: str | None = None) -> None:
        """Count and log a refusal. The log combines repeated lines (`webapp.logs.lines`)."""
        self._observer.api_refused(why)
        about = {"address": address, "why": why}
        event = "api.held_back" if why == HELD_BACK else "api.refused"
        _log.warning(event, extra=about if key is None else {**about, "key": key})


@dataclass(frozen=True, slots=True)
class RequiresScope:
    """A route guard that requires a key with one of the given scopes.

    With `or_person`, a person's own access token is accepted instead of a key. Without scopes, only
    such a token is accepted.
    """

    scopes: frozenset[KeyScope]
    or_person: bool

    async def __call__(self, connection: _AnyConnection, _: BaseRouteHandler) -> None:
        request = cast("AnyRequest", connection)
        found = await _found(request, _paces(request), or_person=self.or_person)
        if not slot_of(connection.scope).enter_context(_paces(request).open.slot(found.who)):
            raise TooManyOpen
        if found.key is not None and not self.scopes:
            raise NotAllowed(
                "API keys cannot decide this: send the approver's own access token, as "
                "Authorization: Bearer TOKEN."
            )
        if found.key is not None and not self.scopes & set(found.key.scopes):
            raise NotAllowed(
                f"This key has the scope {' and '.join(found.key.scopes)}, but the request needs "
                f"{' or '.join(sorted(self.scopes))}. Create a key: `elicit api-keys new`."
            )
        cast("Any", connection.scope)[_FOUND] = found

    @property
    def security(self) -> list[SecurityRequirement]:
        """The credentials that the route accepts, for the OpenAPI document."""
        requirements: list[SecurityRequirement] = [{"key": []}] if self.scopes else []
        if not self.scopes <= {KeyScope.APPROVE, KeyScope.OPERATE}:
            requirements.append({"key": [], "person": []})
        return [*requirements, {"alone": []}] if self.or_person else requirements


def requires(*scopes: KeyScope, or_person: bool = False) -> RequiresScope:
    return RequiresScope(frozenset(scopes), or_person)


def requester_of(request: AnyRequest) -> Requester:
    """Return the requester that the guard stored on the request, for a route handler or a stream.

    The requester has the service too: if a handler had two dependencies, Litestar would resolve
    them in a task group, which took a tenth of a request's time.
    """
    found: Requester = cast("Any", request.scope)[_FOUND]
    return found


CurrentRequester: TypeAlias = NamedDependency[Requester]


async def must_still_count(request: AnyRequest) -> None:
    """Check the request's credentials again, because they may have expired during a long wait.

    Raises the same errors as the guard.
    """
    key = await _key_of(request, or_person=requester_of(request).key is None)
    await _person_of(request, key)


_service: Callable[[AnyRequest], Service] = part("service")
_paces: Callable[[AnyRequest], ApiLimits] = part("paces")
_tokens: Callable[[AnyRequest], Verifier | None] = part("tokens")
_uses: Callable[[AnyRequest], TokenUses] = part("uses")


async def _found(request: AnyRequest, paces: ApiLimits, *, or_person: bool) -> Requester:
    """Authenticate the request and apply the rate limits.

    If the address has reached its limit of refused credentials, an unknown key is refused without
    reading the store. A known key is still looked up, and a person's token is verified without the
    store.

    Raises:
        ApiKeyRefused: The key is missing or not valid.
        AccessTokenRefused: The access token is not valid.
        IssuerUnavailable: The issuer cannot be reached to verify the token.
        NotAllowed: The key or token must not be used like this.
        TooOften: The caller or the address has to wait.
    """
    address = address_key(request.scope)
    try:
        await _must_not_be_guessed(request, wait=paces.refused.wait(address))
        key = await _key_of(request, or_person=or_person)
        alone = await _person_of(request, None) if key is None else None
    except (ApiKeyRefused, AccessTokenRefused, TooOften) as refused:
        _note(paces, address, refused)
        raise
    found = Requester(service=_service(request), key=key, person=alone)
    paces.known.require(found.who)  # before a costly check of the person's token
    if key is None:
        return found
    return replace(found, person=await _person_of(request, key))


async def _must_not_be_guessed(request: AnyRequest, *, wait: float) -> None:
    """Refuse an unknown key from an address that has to wait. Raises TooOften."""
    text = _bearer_in(request) or ""
    if wait and is_key(text) and not await _service(request).identity.api_keys.is_known(text):
        raise TooOften(wait)


def _note(
    paces: ApiLimits, address: str, refused: ApiKeyRefused | AccessTokenRefused | TooOften
) -> None:
    """Record a refusal. Raises TooOften if the address sent too many bad credentials."""
    if isinstance(refused, TooOften):
        paces.note(address, why=HELD_BACK)
        return
    if isinstance(refused, ApiKeyRefused):
        paces.note(address, why=refused.why, key=refused.key)
    else:
        paces.note(address, why=refused.error)
    try:
        paces.refused.require(address)
    except TooOften as held_back:
        paces.note(address, why=HELD_BACK)
        raise held_back from None


async def _key_of(request: AnyRequest, *, or_person: bool) -> ApiKey | None:
    """Return the request's key, or None for a person without a key. Raises ApiKeyRefused."""
    text = _credentials(request)
    if or_person and not text.startswith(PREFIX) and _tokens(request) is not None:
        return None
    return await _service(request).identity.api_keys.of(text)


async def _person_of(request: AnyRequest, key: ApiKey | None) -> Caller | None:
    """Return the person of the access token, which comes with a key or instead of a key.

    Raises AccessTokenRefused, IssuerUnavailable, NotAllowed or NotConfigured.
    """
    service = _service(request)
    use = _uses(request).own if key is None else _uses(request).act
    try:
        text = _token_in(request, key)
        if text is None:
            return None
        tokens = _must_be_set(_tokens(request))
        token = await tokens.verify(text, sender=address_key(request.scope), use=use)
    except BadBearer as refusal:
        log_refusal(refusal)
        header = _AUTHORIZATION if key is None else PERSON_HEADER
        raise AccessTokenRefused(header, refusal, use=use) from None
    except Failed as error:
        raise IssuerUnavailable(str(error)) from error
    subject = subject_of(token, service.identity, issuer=tokens.issuer)
    person = service.identity.caller(None, subject=subject, client="")
    if person.owner is None:
        raise NotAllowed(
            "This access token does not identify a person (it has no subject of an issuer)."
        )
    return person


def _token_in(request: AnyRequest, key: ApiKey | None) -> str | None:
    """Return the person's access token, or None. Raises BadBearer or NotAllowed."""
    of_person = header_value(request.scope, PERSON_HEADER.lower().encode())
    if key is not None:
        if of_person is not None:
            _must_act_for_people(key)
        return of_person
    if of_person is not None:
        raise BadBearer("several headers", error="invalid_request")
    return _credentials(request)


def _must_be_set(tokens: Verifier | None) -> Verifier:
    """Return the verifier. Raises NotConfigured if the server has no issuer."""
    if tokens is None:
        raise NotConfigured("ELICIT_ISSUER")
    return tokens


def _must_act_for_people(key: ApiKey) -> None:
    """Check the key. Raises NotAllowed if the key cannot ask, or is limited to some users."""
    if KeyScope.ASK not in key.scopes:
        raise NotAllowed(f"This key cannot use {PERSON_HEADER}: use a key with the scope ask.")
    if key.owners:
        raise NotAllowed(
            f"This key is for the users that it names: leave {PERSON_HEADER} out, or create a key "
            "without --owner with `elicit api-keys new`."
        )


def _bearer_in(request: AnyRequest) -> str | None:
    """Return the bearer credentials, or None unless there is exactly one Authorization header."""
    credentials = facts_of(request.scope).headers.get(b"authorization", [])
    scheme, _, text = credentials[0].partition(" ") if len(credentials) == 1 else ("", "", "")
    return text.strip(" ") if scheme.lower() == "bearer" else None


def _credentials(request: AnyRequest) -> str:
    """Return the bearer credentials. Raises ApiKeyRefused if there are none."""
    text = _bearer_in(request)
    if text is None:
        raise ApiKeyRefused(
            "This needs an API key, in one header: Authorization: Bearer KEY.", why="missing"
        )
    return text
