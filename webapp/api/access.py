"""Who calls: a program by its key, perhaps for a person by their access token, or a person alone.

What could go wrong: a key that is guessed, or one whose program runs wild. So guesses are held back
by their address before the store is asked for each, and each program and person by a rate of their
own, however many keys and tokens they have. A key that works is never held back for what others do
at its address. A key in the address would stand in logs, and in a cookie a page could use it:
neither is looked at. Or a program that acts for a person who has not sent it: so their access token
is checked by the verifier of `/mcp`, with each request, and while an answer is still on its way.
Or a token that a person gave their assistant for its calls, and that decides in their place: for
what is brought here tokens are made apart (`TokenUses`).
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
from webapp.http.address import headers_of
from webapp.http.parts import AnyRequest, part
from webapp.http.rate_limit import AtOnce, Rates, TooOften, address_key
from webapp.identity.access_tokens import Verifier, log_refusal, one_in, subject_of
from webapp.identity.api_keys import PREFIX, ApiKeyRefused, KeyScope, is_key
from webapp.identity.identity import Caller
from webapp.records.ids import tail_of
from webapp.records.values import ApiKey
from webapp.service import Service
from webapp.telemetry.observer import Observer

PERSON_HEADER: Final = "User-Access-Token"
REQUESTS_AT_ONCE: Final = 100
BETWEEN_REQUESTS: Final = timedelta(milliseconds=100)
REFUSED_AT_ONCE: Final = 30  # of one address
BETWEEN_REFUSED: Final = timedelta(seconds=1)
OPEN_AT_ONCE: Final = 300  # requests of one, most of which wait; a third of all connections
PROXIED_AT_ONCE: Final = 8  # of one program
PROXIED_AT_ONCE_IN_ALL: Final = 32  # the way out is everybody's
_AUTHORIZATION: Final = "Authorization"
_FOUND: Final = "elicit_url.requester"
_ROOM: Final = "elicit_url.room"
HELD_BACK: Final = "held_back"
_BAD: Final = (401, "is too old, damaged, or not made for this server")
_REFUSED: Final = {
    "invalid_request": (400, "comes in this one header, once, and never in an address"),
    "insufficient_scope": (403, "that was made for something else does nothing here"),
}
_AnyConnection: TypeAlias = ASGIConnection[Any, Any, Any, Any]
_log = logging.getLogger(__name__)


class AccessTokenRefused(ElicitError):
    """An access token that does not count, in that header."""

    name = "ACCESS_TOKEN_REFUSED"
    http_status = 401

    def __init__(self, header: str, refusal: BadBearer, *, use: TokenUse) -> None:
        self.error = refusal.error or "invalid_token"
        self.status, said = _REFUSED.get(self.error, _BAD)
        by_scope = f"the scope of {use.setting}, which the operator sets"
        super().__init__(
            f"{header}: an access token {said}. Have the person's issuer make one for "
            f"{use.resource} (RFC 8707), or with {use.scope or by_scope}."
        )
        scope = use.scope if self.error == "insufficient_scope" else None
        asks = "" if scope is None else f', scope="{scope}"'
        self.challenge = f'Bearer error="{self.error}"{asks}'


class IssuerUnavailable(ElicitError):
    """Whose an access token is cannot be found out at the moment."""

    name = "ISSUER_UNAVAILABLE"
    http_status = 503


@dataclass(frozen=True, slots=True, kw_only=True)
class Requester:
    """Who sent a request: a program, perhaps for a person, or a person without a program."""

    key: ApiKey | None = None
    person: Caller | None = None

    @property
    def program(self) -> ApiKey:
        """Its key, at a route that no person comes to alone."""
        assert self.key is not None
        return self.key

    @property
    def who(self) -> str:
        """Who is counted as one: the program, whichever of its keys came, or the person."""
        if self.key is not None:
            return f"program {self.key.program}"
        assert self.person is not None
        return f"person {self.person.owner}"

    @property
    def asks(self) -> bool:
        return self.key is not None and KeyScope.ASK in self.key.scopes

    @property
    def name(self) -> str:
        """As the audit names it: by what the list of keys, or those of owners, show."""
        if self.key is not None:
            return f"key {tail_of(self.key)}"
        assert self.person is not None
        return f"person {self.person.owner}"


class TooManyOpen(TooOften):
    """So many requests of one program or person are not answered yet that no more are begun."""

    name = "TOO_MANY_OPEN"

    def __init__(self) -> None:
        super().__init__(1)
        words = f"{OPEN_AT_ONCE} requests of this program or person are not answered yet"
        self.args = (f"{words}: close some that wait.",)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUses:
    """For what people's own access tokens are brought here.

    `act` is beside a program's key, which asks them; `own` in the place of a key: what they are
    asked, what they allow, and what they decide for others.
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
    """How many requests may stand at a provider at the same time, of each program and in all."""

    def __init__(self) -> None:
        self._taken = Counter[str]()

    @contextmanager
    def one(self, key: str) -> Generator[None]:
        """Raises TooOften where all are taken."""
        if self._taken[key] >= PROXIED_AT_ONCE or self._taken.total() >= PROXIED_AT_ONCE_IN_ALL:
            raise TooOften(1)
        self._taken[key] += 1
        try:
            yield
        finally:
            self._taken[key] -= 1
            if not self._taken[key]:
                del self._taken[key]


def room_in(scope: Any) -> ExitStack:
    """Return what the request holds until it is answered."""
    found: ExitStack = scope.setdefault(_ROOM, ExitStack())
    return found


class Paces:
    """How often each program or person may call, and each address without one of these."""

    def __init__(self, *, clock: Clock, observer: Observer) -> None:
        self.known = Rates(burst=REQUESTS_AT_ONCE, every=BETWEEN_REQUESTS, clock=clock)
        self.refused = Rates(burst=REFUSED_AT_ONCE, every=BETWEEN_REFUSED, clock=clock)
        self.open = AtOnce(OPEN_AT_ONCE)
        self.proxied = Places()
        self._observer = observer

    def note(self, address: str, *, why: str, key: str | None = None) -> None:
        """Count a refusal, and log it: the log counts what repeats (`webapp.logs.lines`)."""
        self._observer.api_refused(why)
        about = {"address": address, "why": why}
        event = "api.held_back" if why == HELD_BACK else "api.refused"
        _log.warning(event, extra=about if key is None else {**about, "key": key})


@dataclass(frozen=True, slots=True)
class Holds:
    """A guard of routes: the request has a key with one of these scopes.

    `or_person`: or a person's own access token in the place of a key; without scopes, that alone.
    """

    scopes: frozenset[KeyScope]
    or_person: bool

    async def __call__(self, connection: _AnyConnection, _: BaseRouteHandler) -> None:
        request = cast("AnyRequest", connection)
        found = await _found(request, _paces(request), or_person=self.or_person)
        if not room_in(connection.scope).enter_context(_paces(request).open.one_more(found.who)):
            raise TooManyOpen
        if found.key is not None and not self.scopes:
            raise NotAllowed(
                "No key decides this: the approver brings their own access token, as "
                "Authorization: Bearer TOKEN."
            )
        if found.key is not None and not self.scopes & set(found.key.scopes):
            raise NotAllowed(
                f"This key may {' and '.join(found.key.scopes)}, and this needs one that may "
                f"{' or '.join(sorted(self.scopes))}: make it with `elicit api-keys new`."
            )
        cast("Any", connection.scope)[_FOUND] = found

    @property
    def security(self) -> list[SecurityRequirement]:
        """The same for the document: by which credentials the route is come to."""
        ways: list[SecurityRequirement] = [{"key": []}] if self.scopes else []
        if not self.scopes <= {KeyScope.APPROVE, KeyScope.OPERATE}:
            ways.append({"key": [], "person": []})
        return [*ways, {"alone": []}] if self.or_person else ways


def holds(*scopes: KeyScope, or_person: bool = False) -> Holds:
    return Holds(frozenset(scopes), or_person)


def requester_of(request: AnyRequest) -> Requester:
    """Whom the guard has found."""
    found: Requester = cast("Any", request.scope)[_FOUND]
    return found


def requester(request: AnyRequest, service: NamedDependency[Service]) -> Requester:
    """The same, brought to a route.

    It asks for the service so that it comes after it: Litestar makes a group of tasks for what it
    may bring at once, which took a tenth of the time of a request.
    """
    del service
    return requester_of(request)


async def must_still_count(request: AnyRequest) -> None:
    """Look again at what the request brought, as if it came now: an answer may take long.

    Raises what the guard raises.
    """
    key = await _key_of(request, or_person=requester_of(request).key is None)
    await _person_of(request, key)


_service: Callable[[AnyRequest], Service] = part("service")
_paces: Callable[[AnyRequest], Paces] = part("paces")
_tokens: Callable[[AnyRequest], Verifier | None] = part("tokens")
_uses: Callable[[AnyRequest], TokenUses] = part("uses")


async def _found(request: AnyRequest, paces: Paces, *, or_person: bool) -> Requester:
    """Raises ApiKeyRefused, AccessTokenRefused, IssuerUnavailable, NotAllowed, TooOften.

    A guess beyond the limit of its address is refused before it is looked up. A key that there is
    is looked up all the same; a person's token is checked without a look-up.
    """
    address = address_key(request.scope)
    try:
        await _must_not_be_guessed(request, wait=paces.refused.wait(address))
        key = await _key_of(request, or_person=or_person)
        alone = await _person_of(request, None) if key is None else None
    except (ApiKeyRefused, AccessTokenRefused, TooOften) as refused:
        _note(paces, address, refused)
        raise
    found = Requester(key=key, person=alone)
    paces.known.require(found.who)  # before what its user's token costs
    if key is None:
        return found
    return replace(found, person=await _person_of(request, key))


async def _must_not_be_guessed(request: AnyRequest, *, wait: float) -> None:
    """Raises TooOften for a key that there is not, from an address that has to wait."""
    text = _bearer_in(request) or ""
    if wait and is_key(text) and not await _service(request).api_keys.is_known(text):
        raise TooOften(wait)


def _note(
    paces: Paces, address: str, refused: ApiKeyRefused | AccessTokenRefused | TooOften
) -> None:
    """Raises TooOften for an address that sent too many credentials that do not work."""
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
    """None for a person alone. Raises ApiKeyRefused."""
    text = _credentials(request)
    if or_person and not text.startswith(PREFIX) and _tokens(request) is not None:
        return None
    return await _service(request).api_keys.of(text)


async def _person_of(request: AnyRequest, key: ApiKey | None) -> Caller | None:
    """The person of the access token beside the key, or in its place.

    Raises AccessTokenRefused, IssuerUnavailable, NotAllowed, NotConfigured.
    """
    service = _service(request)
    use = _uses(request).own if key is None else _uses(request).act
    try:
        text = _token_in(request, key)
        if text is None:
            return None
        tokens = _must_be_set(_tokens(request))
        token = await tokens.whose(text, sender=address_key(request.scope), use=use)
    except BadBearer as refusal:
        log_refusal(refusal)
        header = _AUTHORIZATION if key is None else PERSON_HEADER
        raise AccessTokenRefused(header, refusal, use=use) from None
    except Failed as error:
        raise IssuerUnavailable(str(error)) from error
    subject = subject_of(token, service.identity, issuer=tokens.issuer)
    person = service.identity.caller(None, subject=subject, client="")
    if person.owner is None:
        raise NotAllowed("This access token names no person (no subject of an issuer).")
    return person


def _token_in(request: AnyRequest, key: ApiKey | None) -> str | None:
    """Raises BadBearer, NotAllowed."""
    beside = one_in(request.scope, PERSON_HEADER.lower().encode())
    if key is not None:
        if beside is not None:
            _must_act_for_people(key)
        return beside
    if beside is not None:
        raise BadBearer("several headers", error="invalid_request")
    return _credentials(request)


def _must_be_set(tokens: Verifier | None) -> Verifier:
    """Raises NotConfigured."""
    if tokens is None:
        raise NotConfigured("ELICIT_ISSUER")
    return tokens


def _must_act_for_people(key: ApiKey) -> None:
    """Raises NotAllowed."""
    if KeyScope.ASK not in key.scopes:
        raise NotAllowed(f"This key acts for nobody by {PERSON_HEADER}: one that may ask does.")
    if key.owners:
        raise NotAllowed(
            f"This key is for the users that it names: leave {PERSON_HEADER} out, or make one "
            "without --owner with `elicit api-keys new`."
        )


def _bearer_in(request: AnyRequest) -> str | None:
    """The one text, in its one place."""
    credentials = headers_of(request.scope, b"authorization")
    scheme, _, text = credentials[0].partition(" ") if len(credentials) == 1 else ("", "", "")
    return text.strip(" ") if scheme.lower() == "bearer" else None


def _credentials(request: AnyRequest) -> str:
    """The same. Raises ApiKeyRefused."""
    text = _bearer_in(request)
    if text is None:
        raise ApiKeyRefused(
            "This needs an API key, in one header: Authorization: Bearer KEY.", why="missing"
        )
    return text
