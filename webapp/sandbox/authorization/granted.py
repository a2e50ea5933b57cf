"""The granted codes and the families of tokens that they were exchanged for.

Risks: a code or a refresh token that comes twice was stolen, by the first sender or the second. So
the second use revokes everything from the first use (RFC 9700, 4.5 and 4.14). No function here
awaits, so no other request changes a record between the read and the write of a function.

A caller is a client with its password, or the bearer of an access token.
"""

import hashlib
import secrets
from base64 import b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import unquote_plus

from webapp.sandbox.authorization.habits import AuthorizationHabits, SimulatedRefusal
from webapp.sandbox.authorization.requests import AuthorizationRequest, Parameters
from webapp.sandbox.settings import Sandbox

# The made-up people of the sandbox and their repositories.


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPerson:
    """A made-up person. Programs know them by `number` (GitHub's `id`), people by `login`."""

    number: int
    login: str
    name: str

    @property
    def email(self) -> str:
        return f"{self.login}@sandbox.example"

    @property
    def repositories(self) -> list[dict[str, Any]]:
        """A few repositories in the format of GitHub's list. The second is private."""
        return [
            {
                "id": self.number * 1000 + index,
                "name": name,
                "full_name": f"{self.login}/{name}",
                "private": is_private,
                "description": description,
                "owner": {"id": self.number, "login": self.login},
            }
            for index, (name, is_private, description) in enumerate(_REPOSITORIES)
        ]


_REPOSITORIES = (
    ("hello-sandbox", False, "A first example"),
    ("secret-plans", True, "An example of a private repository"),
    ("sand-castle", False, "Gone with the tide"),
)

PEOPLE = (
    SandboxPerson(number=583231, login="octocat", name="Octo Cat"),
    SandboxPerson(number=480938, login="hubot", name="Hubot"),
)


def person_of(login: str | None) -> SandboxPerson | None:
    return next((person for person in PEOPLE if person.login == login), None)


CODE_LIFE = timedelta(seconds=60)
ACCESS_LIFE = timedelta(hours=1)
_TOKEN_BYTES = 24


class GrantRefused(Exception):
    """The token endpoint refuses a request."""

    def __init__(self, refusal: SimulatedRefusal, description: str) -> None:
        self.refusal = refusal
        self.description = description
        super().__init__(description)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A grant with its newest tokens, of which only hashes are stored."""

    id: str
    person: SandboxPerson
    scopes: tuple[str, ...]
    is_for_person: bool  # True for Slack's user token, False for its bot token
    nonce: str | None
    began_at: datetime
    access: str = ""
    access_scopes: tuple[str, ...] = ()
    access_until: datetime
    refresh: str = ""
    is_revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """New tokens of a family, before they are sent."""

    family: Family
    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Code:
    request: AuthorizationRequest
    person: SandboxPerson
    until: datetime
    families: tuple[str, ...] | None = None  # the families from this code; None if it is unused


class AuthorizationGrants:
    """The codes and tokens of one authorization server."""

    def __init__(self, *, habits: AuthorizationHabits, clock: Callable[[], datetime]) -> None:
        self._habits = habits
        self._clock = clock
        self._codes: dict[str, _Code] = {}
        self._families: dict[str, Family] = {}
        self._tokens: dict[str, str] = {}  # hash of every token ever issued -> its family

    def issue_code(self, request: AuthorizationRequest, *, person: SandboxPerson) -> str:
        code = secrets.token_urlsafe(_TOKEN_BYTES)
        until = self._clock() + CODE_LIFE
        self._codes[_hash(code)] = _Code(request=request, person=person, until=until)
        return code

    def redeem(self, code: str, *, redirect_uri: str | None, verifier: str) -> list[Issued]:
        """Exchange a code for tokens, once. The code is used up even if the exchange fails.

        Raises:
            GrantRefused: The code is unknown, used or expired, or another value is wrong.
        """
        name = _hash(code)
        found = self._codes.get(name)
        if found is None:
            raise GrantRefused(SimulatedRefusal.INVALID_GRANT, "The code is unknown.")
        if found.families is not None:
            for family in found.families:
                self._end(family)
            raise GrantRefused(SimulatedRefusal.SPENT_CODE, "The code was used before.")
        self._codes[name] = replace(found, families=())
        if self._clock() >= found.until:
            raise GrantRefused(SimulatedRefusal.INVALID_GRANT, "The code has expired.")
        if redirect_uri != found.request.redirect.redirect_uri:
            raise GrantRefused(
                SimulatedRefusal.WRONG_REDIRECT,
                "The redirect_uri differs from the requested one.",
            )
        if not secrets.compare_digest(challenge_of(verifier), found.request.challenge):
            raise GrantRefused(
                SimulatedRefusal.INVALID_GRANT, "The code_verifier is not valid for the code."
            )
        issued = [
            self._issue(self._begin(found, scopes=scopes, is_for_person=is_for_person))
            for scopes, is_for_person in self._parts(found.request)
        ]
        families = tuple(one.family.id for one in issued)
        self._codes[name] = replace(found, families=families)
        return issued

    def refresh(self, token: str, *, scopes: tuple[str, ...] | None) -> Issued:
        """Exchange the newest refresh token for new tokens.

        Raises:
            GrantRefused: The token is unknown, revoked or used before, or the scopes exceed the
                grant.
        """
        family = self._families.get(self._tokens.get(_hash(token), ""))
        is_one = token.startswith(self._habits.refresh_prefix)
        if family is None or family.is_revoked or not is_one:
            raise GrantRefused(
                SimulatedRefusal.INVALID_REFRESH, "The refresh token is unknown or revoked."
            )
        if family.refresh != _hash(token):
            self._end(family.id)
            raise GrantRefused(
                SimulatedRefusal.INVALID_REFRESH, "The refresh token was used before."
            )
        if scopes is not None and not set(scopes) <= set(family.scopes):
            raise GrantRefused(
                SimulatedRefusal.INVALID_SCOPE, "The scopes exceed the granted ones."
            )
        return self._issue(family, scopes=scopes)

    def family_of(self, access_token: str | None) -> Family | None:
        """Return the family of a valid access token, or None."""
        if access_token is None:
            return None
        name = _hash(access_token)
        family = self._families.get(self._tokens.get(name, ""))
        is_good = (
            family is not None
            and family.access == name
            and not family.is_revoked
            and self._clock() < family.access_until
        )
        return family if is_good else None

    def revoke(self, token: str) -> bool:
        """Revoke the family that the token belongs to. Return False if there is no such family."""
        family = self._families.get(self._tokens.get(_hash(token), ""))
        if family is None or family.is_revoked:
            return False
        self._end(family.id)
        return True

    def _parts(self, request: AuthorizationRequest) -> list[tuple[tuple[str, ...], bool]]:
        if not self._habits.says_ok:
            return [(request.scopes, False)]
        both = [(request.scopes, False), (request.user_scopes, True)]
        return [part for part in both if part[0]]

    def _begin(self, code: _Code, *, scopes: tuple[str, ...], is_for_person: bool) -> Family:
        now = self._clock()
        return Family(
            id=secrets.token_hex(8),
            person=code.person,
            scopes=scopes,
            is_for_person=is_for_person,
            nonce=code.request.nonce,
            began_at=now,
            access_until=now,
        )

    def _issue(self, family: Family, *, scopes: tuple[str, ...] | None = None) -> Issued:
        access_prefix = self._habits.access_prefix
        if family.is_for_person:
            access_prefix = access_prefix.replace("xoxb", "xoxp")
        access_token = access_prefix + secrets.token_urlsafe(_TOKEN_BYTES)
        refresh_token = self._habits.refresh_prefix + secrets.token_urlsafe(_TOKEN_BYTES)
        family = replace(
            family,
            access=_hash(access_token),
            access_scopes=family.scopes if scopes is None else scopes,
            access_until=self._clock() + ACCESS_LIFE,
            refresh=_hash(refresh_token),
        )
        self._families[family.id] = family
        self._tokens[family.access] = self._tokens[family.refresh] = family.id
        return Issued(family=family, access_token=access_token, refresh_token=refresh_token)

    def _end(self, id: str) -> None:
        self._families[id] = replace(self._families[id], is_revoked=True)


def challenge_of(verifier: str) -> str:
    """Return the S256 challenge of a verifier (RFC 7636, 4.2)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


# The authentication of a caller.


def require_client(headers: Mapping[str, str], form: Parameters, *, sandbox: Sandbox) -> None:
    """Check the client's password, from the header or the form.

    Raises:
        GrantRefused: The id or secret is wrong, or the client sent two secrets or two ids.
        Repeated: A field came more than once.
    """
    basic = basic_of(headers)
    posted = (form.get("client_id"), form.get("client_secret"))
    if basic is not None and posted[1] is not None:
        raise GrantRefused(
            SimulatedRefusal.INVALID_REQUEST, "The client sent its credentials twice."
        )
    if basic is not None and posted[0] not in (None, basic[0]):
        raise GrantRefused(SimulatedRefusal.INVALID_REQUEST, "The client sent two different ids.")
    id, secret = basic or posted
    if not is_client(id or "", secret or "", sandbox=sandbox):
        raise GrantRefused(SimulatedRefusal.INVALID_CLIENT, "The client id or secret is wrong.")


def is_client(id: str, secret: str, *, sandbox: Sandbox) -> bool:
    is_id = secrets.compare_digest(id.encode(), sandbox.client_id.encode())
    is_secret = secrets.compare_digest(secret.encode(), sandbox.client_secret.encode())
    return is_id and is_secret


def basic_of(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Return the name and password of HTTP Basic, decoded as form values (RFC 6749, 2.3.1)."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        id, mark, secret = b64decode(text.strip(), validate=True).decode().partition(":")
    except ValueError:
        return None
    return (unquote_plus(id), unquote_plus(secret)) if mark else None


def bearer_of(headers: Mapping[str, str], *, schemes: tuple[str, ...] = ("bearer",)) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() or None if scheme.lower() in schemes else None
