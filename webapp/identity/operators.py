"""Operators: the people who may see the pages about the records of all people.

People who sign in at ELICIT_ISSUER are operators by their subject, or by a claim that the issuer
signed. If the public address is on this machine and no issuer is set, no person can sign in. The
command `elicit operator` then prints a one-time link.

Risks: a person can open the pages after the issuer has removed the claim, so a sign-in proves the
claim for an hour only, as for approvers. Another risk is a program on this machine, such as a tool
that fetches URLs, that opens the pages. A local connection alone therefore proves nothing. The link
works once, within ten minutes, and only after a click on its page. It opens the pages for an hour,
only in the browser of that click.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from flows.crypto.tokens import Claims, Purpose, Tokens
from flows.errors import InvalidToken
from flows.oauth.access_token import claim_mark
from webapp.deadline import Clock
from webapp.http.browser import Browser, cookie_name
from webapp.identity.identity import Identity, Viewer
from webapp.identity.sessions import OneTimeAddresses, one_time_token, set_cookie
from webapp.stores import Store

SESSION_LIVES: Final = timedelta(hours=1)
ENTRY: Final = "/operator/enter"
BY_LINK: Final = "operator"  # the name in the audit log, also for commands
_USED = "used operator link"  # the kind of the rows that record used links


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorRules:
    """The settings that name the operators: subjects, and pairs of claim and value, by issuer."""

    subjects: frozenset[str] = frozenset()
    claims: frozenset[tuple[str, str]] = frozenset()
    issuers: frozenset[str] = frozenset()

    @property
    def names_somebody(self) -> bool:
        return bool(self.subjects or self.claims)


class OperatorAccess(StrEnum):
    """The access of a browser to the operator's pages, or what the person has to do first."""

    OPEN = "open"
    SIGN_IN = "sign in"
    LINK = "link"
    HIDDEN = "hidden"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorDecision:
    """A decision about one request.

    `name` is the operator's audit name, `label` is for people, and `owner` is the tag for the log.
    """

    access: OperatorAccess
    name: str = ""
    label: str = ""
    owner: str = BY_LINK


def link_address(tokens: Tokens, *, url: str, now: datetime) -> str:
    """Return the address that opens the operator's pages, once, in one browser."""
    return f"{url}{ENTRY}/{one_time_token(tokens, Purpose.OPERATOR_LINK, now=now)}"


class Operators:
    """The operators of one public URL. `counts_for` is how long a sign-in proves the claims."""

    def __init__(
        self,
        *,
        rules: OperatorRules,
        counts_for: timedelta,
        identity: Identity,
        browser: Browser,
        tokens: Tokens,
        store: Store,
        public_url: str,
        clock: Clock,
    ) -> None:
        self._rules = rules
        self._marks = {claim_mark(*pair) for pair in rules.claims}
        self._counts_for = counts_for
        self._identity = identity
        self._browser = browser
        self._tokens = tokens
        self._links = OneTimeAddresses(
            tokens=tokens, store=store, purpose=Purpose.OPERATOR_LINK, used=_USED, clock=clock
        )
        self._is_https = public_url.startswith("https:")
        self._clock = clock
        self.cookie_name = cookie_name(public_url, of="operator")
        self.can_link = identity.pairing.is_possible

    @property
    def is_on(self) -> bool:
        """True if anybody can open the pages."""
        return self.can_link or self._rules.names_somebody

    def access(
        self, viewer: Viewer | None, scope: Mapping[str, Any], cookies: Mapping[str, str]
    ) -> OperatorDecision:
        """Return the decision about a request by this viewer with these cookies."""
        if self.can_link:
            if self._identity.can_pair(scope) and self._has_session(cookies):
                label = "the operator of this computer"
                return OperatorDecision(access=OperatorAccess.OPEN, name=BY_LINK, label=label)
            return OperatorDecision(access=OperatorAccess.LINK)
        if not self._rules.names_somebody:
            return OperatorDecision(access=OperatorAccess.HIDDEN)
        session = None if viewer is None else viewer.session
        if viewer is None or session is None:
            return OperatorDecision(access=OperatorAccess.SIGN_IN)
        # An old sign-in may be from before the issuer or the settings named this person.
        if self._clock() >= session.signed_in_at + self._counts_for:
            return OperatorDecision(access=OperatorAccess.SIGN_IN)
        if session.issuer not in self._rules.issuers:
            return OperatorDecision(access=OperatorAccess.HIDDEN)
        if session.subject not in self._rules.subjects and self._marks.isdisjoint(session.claims):
            return OperatorDecision(access=OperatorAccess.HIDDEN)
        return OperatorDecision(
            access=OperatorAccess.OPEN,
            name=f"{BY_LINK} {session.issuer}#{session.subject}",
            label=session.label,
            owner=viewer.owner,
        )

    async def can_use(self, token: str, scope: Mapping[str, Any]) -> bool:
        """Return True if the link still works."""
        return self._may_link(scope) and await self._links.can_use(token)

    async def use(self, token: str, scope: Mapping[str, Any], *, cookie: str) -> str:
        """Use the link in the browser with this cookie, and return the Set-Cookie header.

        Raises InvalidToken if the link was used.
        """
        if not self._may_link(scope):
            raise InvalidToken("not on this machine")
        id, now = await self._links.use(token), self._clock()
        claims = Claims(
            purpose=Purpose.OPERATOR,
            id=id,
            expires_at=now + SESSION_LIVES,
            rest=self._browser.hash(cookie),
        )
        value = self._tokens.mint(claims, now=now)
        return set_cookie(self.cookie_name, value, life=SESSION_LIVES, is_secure=self._is_https)

    def _has_session(self, cookies: Mapping[str, str]) -> bool:
        try:
            claims = self._tokens.read(
                cookies.get(self.cookie_name, ""), purpose=Purpose.OPERATOR, now=self._clock()
            )
        except InvalidToken:
            return False
        return self._browser.is_same(claims.rest, cookies)

    def _may_link(self, scope: Mapping[str, Any]) -> bool:
        return self.can_link and self._identity.can_pair(scope)
