"""What was granted: codes, and the families of tokens that came of them.

What could go wrong: a code or a refresh token that comes twice was stolen, by the first sender or
the second; so the second use ends everything that came of the first (RFC 9700, 4.5 and 4.14).
No function here awaits, so each is one step; a change is made to the record that was looked at.
"""

import hashlib
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from webapp.sandbox.authorization.habits import AuthorizationHabits, PlayedRefusal
from webapp.sandbox.authorization.people import SandboxPerson
from webapp.sandbox.authorization.requests import AuthorizationRequest

CODE_LIFE = timedelta(seconds=60)
ACCESS_LIFE = timedelta(hours=1)
_TOKEN_BYTES = 24


class GrantRefused(Exception):
    """The token endpoint's no."""

    def __init__(self, refusal: PlayedRefusal, description: str) -> None:
        self.refusal = refusal
        self.description = description
        super().__init__(description)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One grant with its newest tokens, of which only hashes are kept."""

    id: str
    person: SandboxPerson
    scopes: tuple[str, ...]
    is_for_person: bool  # Slack's user token, not its bot's
    nonce: str | None
    began_at: datetime
    access: str = ""
    access_scopes: tuple[str, ...] = ()
    access_until: datetime
    refresh: str = ""
    is_revoked: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Issued:
    """New tokens of a family, on their way out."""

    family: Family
    access_token: str = field(repr=False)
    refresh_token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Code:
    request: AuthorizationRequest
    person: SandboxPerson
    until: datetime
    families: tuple[str, ...] | None = None  # what came of it; None: it was not used


class AuthorizationGrants:
    """Everything that one authorisation server has given."""

    def __init__(self, *, habits: AuthorizationHabits, clock: Callable[[], datetime]) -> None:
        self._habits = habits
        self._clock = clock
        self._codes: dict[str, _Code] = {}
        self._families: dict[str, Family] = {}
        self._tokens: dict[str, str] = {}  # hash of any token ever given -> its family

    def issue_code(self, request: AuthorizationRequest, *, person: SandboxPerson) -> str:
        code = secrets.token_urlsafe(_TOKEN_BYTES)
        until = self._clock() + CODE_LIFE
        self._codes[_hash(code)] = _Code(request=request, person=person, until=until)
        return code

    def redeem(self, code: str, *, redirect_uri: str | None, verifier: str) -> list[Issued]:
        """Turn a code into tokens, once. Raises Refused; whatever the reason, the code is spent."""
        name = _hash(code)
        found = self._codes.get(name)
        if found is None:
            raise GrantRefused(PlayedRefusal.INVALID_GRANT, "The code is not known.")
        if found.families is not None:
            for family in found.families:
                self._end(family)
            raise GrantRefused(PlayedRefusal.SPENT_CODE, "The code was used before.")
        self._codes[name] = replace(found, families=())
        if self._clock() >= found.until:
            raise GrantRefused(PlayedRefusal.INVALID_GRANT, "The code has expired.")
        if redirect_uri != found.request.way.redirect_uri:
            raise GrantRefused(
                PlayedRefusal.WRONG_REDIRECT, "The redirect_uri is not the one of the code."
            )
        if not secrets.compare_digest(challenge_of(verifier), found.request.challenge):
            raise GrantRefused(
                PlayedRefusal.INVALID_GRANT, "The code_verifier does not fit the code."
            )
        issued = [
            self._issue(self._begin(found, scopes=scopes, is_for_person=is_for_person))
            for scopes, is_for_person in self._parts(found.request)
        ]
        families = tuple(one.family.id for one in issued)
        self._codes[name] = replace(found, families=families)
        return issued

    def refresh(self, token: str, *, scopes: tuple[str, ...] | None) -> Issued:
        """Turn the newest refresh token into new tokens. Raises Refused."""
        family = self._families.get(self._tokens.get(_hash(token), ""))
        is_one = token.startswith(self._habits.refresh_prefix)
        if family is None or family.is_revoked or not is_one:
            raise GrantRefused(
                PlayedRefusal.INVALID_REFRESH, "The refresh token is not known or revoked."
            )
        if family.refresh != _hash(token):
            self._end(family.id)
            raise GrantRefused(PlayedRefusal.INVALID_REFRESH, "The refresh token was used before.")
        if scopes is not None and not set(scopes) <= set(family.scopes):
            raise GrantRefused(PlayedRefusal.INVALID_SCOPE, "More is asked for than was granted.")
        return self._issue(family, scopes=scopes)

    def family_of(self, access_token: str | None) -> Family | None:
        """Whose access token this is, while it is good."""
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
        """End the family of any of its tokens; False if there is none to end."""
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
    """The S256 challenge of a verifier (RFC 7636, 4.2)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def _hash(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
