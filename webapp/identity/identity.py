"""Identity: who calls, who opens a link, and whether both are the same person.

Risks: a forwarded link. The person who opens a link must be the person who asked. This module
decides that before any detail is shown and before any redirect. E-mail addresses are never
compared: a person is a subject of an issuer, or this machine's own user.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from flows.crypto.tokens import Ring, Tokens
from flows.elicitation.states import Elicitation
from flows.elicitation.traits import traits_of
from flows.elicitation.user_code import Code, UserCodeGenerator, is_confirmed
from flows.errors import NotAllowed, NotConfigured
from flows.oauth.access_token import SUBJECT_CLAIM, Team, subject_of
from flows.oauth.token_exchange import SubjectToken
from webapp.elicitations.service import Elicitations
from webapp.http.browser import Browser
from webapp.http.rate_limit import Rates, address_key
from webapp.identity.api_keys import ApiKeys
from webapp.identity.local_peer import LocalPeers
from webapp.identity.sessions import LOCAL_ISSUER, BrowserSession, Pairing, Sessions
from webapp.identity.sign_in import Logouts
from webapp.identity.user_codes import UserCodes
from webapp.identity.users import Users

if TYPE_CHECKING:
    from webapp.identity.sign_in import SigningIn

# The limit of questions by anonymous callers at one address, because each question is stored.
QUESTIONS_AT_ONCE = 30
BETWEEN_QUESTIONS = timedelta(seconds=10)
_WHO_OR_CODE = "who= of create_app (or ELICIT_BIND=code, with which users type a one-time code)"

_FROM_INSIDE = (
    "Nobody can be asked: this call comes from inside the server's own process and names no user, "
    "and other people can reach this server. In your application's own code, ask inside `async "
    "with asking(owner, show=...)`. A client in this process has to call over HTTP with the user's "
    "access token."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A caller as verified by the served server's own authentication, or by this package."""

    issuer: str
    subject: str | None
    client_id: str
    claims: tuple[str, ...] = ()  # the claims that approvers are matched by
    signed_in_at: datetime | None = None  # the time of the sign-in at the issuer
    bearer: SubjectToken | None = field(default=None, repr=False, compare=False)
    expires_at: datetime | None = None  # of the access token


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The caller of a tool. `refusal` says why no person could safely answer, or is None.

    `client` is the verified client id if `is_client_verified` is True, otherwise the name that the
    client gives itself. With `by_code`, the link is bound to the person by a code that goes from
    the page to the chat. Without an owner, questions belong to this run only: they are not merged
    with equal questions, and no answer is stored or passed on to another run.
    """

    owner: str | None
    client: str
    refusal: str | None = None
    by_code: bool = False
    is_client_verified: bool = False
    is_user: bool = False  # the application itself asks this user, without a tool call
    name: str | None = None  # the name that approvers see
    issuer: str | None = None  # of the verified subject; LOCAL_ISSUER for this machine's user
    claims: tuple[str, ...] = ()  # the claims that approvers are matched by
    signed_in_at: datetime | None = None  # the time of the sign-in at the issuer
    teams: tuple[str, ...] = ()  # the names of the person's teams
    teams_until: datetime | None = None  # when the token that names the teams expires
    # the person's own access token, which only a declared exchange may send elsewhere
    bearer: SubjectToken | None = field(default=None, repr=False, compare=False)

    @property
    def is_anonymous(self) -> bool:
        return self.owner is None

    def must_be_answerable(self, kind: str, *, in_client: bool = False) -> None:
        """Raise NotAllowed unless a person can safely answer a question of this kind.

        With `in_client`, the caller answers in the client, so no link has to reach the right
        person.
        """
        if self.refusal is not None and (self.owner is None or not in_client):
            raise NotAllowed(self.refusal)
        if self.owner is None and not traits_of(kind).may_be_anonymous:
            raise NotAllowed(
                "An anonymous caller cannot be asked this question, because the server stores the "
                "answer for one person. Set ELICIT_ISSUER, so that people sign in."
            )

    def must_be_known(self) -> str:
        """Return the owner. Raises NotAllowed if the owner is unknown."""
        if self.refusal is not None or self.owner is None:
            raise NotAllowed(self.refusal or "The server does not know who the caller is.")
        return self.owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Sender:
    """The sender of a request. `key` is the same for all requests of one sender.

    All senders with the same `share` have one limit together: all clients of a person, or all
    anonymous callers with one `key` at one address.
    """

    key: str
    share: str
    caller: Caller
    is_nameless: bool = False
    is_own_user: bool = False  # the user of this machine who runs the server


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """The person at a browser, identified by a session, the application, or this machine."""

    owner: str
    label: str
    session: BrowserSession | None = None
    is_user: bool = False
    teams: tuple[str, ...] = ()  # the names of the person's teams


class Access(StrEnum):
    """The access of a browser to a question: open, or the reason why not."""

    OPEN = "open"
    SIGN_IN = "sign in"
    OTHER_PERSON = "other person"
    CODE = "code"
    OTHER_BROWSER = "other browser"
    APPLICATION = "application"  # sign in at the application that asks
    OTHER_USER = "other user"
    PAIR = "pair"
    HERE_ONLY = "here only"


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessDecision:
    access: Access
    viewer: Viewer | None = None

    @property
    def is_open(self) -> bool:
        return self.access is Access.OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class IdentityRules:
    """The operator's choices.

    `issuers` are the names of the issuers where people sign in, each with the claims that identify
    people there. `binds_by_code` allows codes, and `lets_model_answer` allows answers from the
    model. With `pairs_for_yes`, this machine's user can answer a gate (an approval before a tool
    runs) only in a paired browser. `teams` are the declared teams. On the pages, a sign-in
    proves membership in a team for `sign_in_counts_for`.
    """

    issuers: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    binds_by_code: bool = False
    asks_anonymous: bool = False
    # plain forms only; the stored answer says that the model gave it
    lets_model_answer: bool = False
    pairs_for_yes: bool = False
    teams: tuple[Team, ...] = ()
    sign_in_counts_for: timedelta = timedelta(hours=1)


class Identity:
    """The callers and viewers, and their sessions, pairing, user codes and API keys."""

    def __init__(
        self,
        elicitations: Elicitations,
        *,
        ring: Ring,
        tokens: Tokens,
        browser: Browser,
        public_url: str,
        uid: int,
        rules: IdentityRules,
        users: Users | None = None,
    ) -> None:
        """Identify people on this machine by `uid`, elsewhere by the issuers in `rules`.

        `users` are the users of the served application; None if no application is served.
        """
        owners, clock, store = elicitations.owners, elicitations.clock, elicitations.store
        self.users = users
        self.logouts = Logouts(owners, clock=clock)
        self.sessions = Sessions(
            tokens=tokens,
            store=store,
            public_url=public_url,
            issuers=rules.issuers,
            clock=clock,
            reports=self.logouts,
        )
        self.pairing = Pairing(
            ring=ring,
            tokens=tokens,
            store=store,
            public_url=public_url,
            uid=uid,
            clock=clock,
            people_sign_in=bool(rules.issuers),
        )
        self.signing_in: SigningIn | None = None  # set if people sign in on our own pages
        codes = UserCodeGenerator(partial(ring.derive_all, "code"))
        self.user_codes = UserCodes(elicitations=elicitations, codes=codes)
        self.api_keys = ApiKeys(elicitations)
        self.anonymous_limit = Rates(burst=QUESTIONS_AT_ONCE, every=BETWEEN_QUESTIONS, clock=clock)
        self._owners = owners
        self._clock = clock
        self._locality = LocalPeers(uid=uid, public_url=public_url)
        self._rules = rules
        self.binds_by_code = rules.binds_by_code
        # If people sign in at several issuers or tenants, one person may have two accounts.
        self.has_several_issuers = len(rules.issuers) > 1
        self.lets_model_answer = rules.lets_model_answer
        self._browser = browser
        self._local_subject = f"uid:{uid}"
        self.local_owner = owners.tag(issuer=LOCAL_ISSUER, subject=self._local_subject)

    def pairs_for_yes(self, owner: str | None) -> bool:
        """Return True if this owner answers gates only on our page, in a paired browser."""
        return self._rules.pairs_for_yes and owner == self.local_owner

    def as_on_our_pages(self, subject: Subject, claims: Mapping[str, Any]) -> Subject:
        """Return the subject, identified by the claim that our own pages use for this issuer."""
        claim = self._rules.issuers.get(subject.issuer, SUBJECT_CLAIM)
        if claim == SUBJECT_CLAIM:
            return subject
        return replace(subject, subject=subject_of(claims, claim=claim))

    def caller(
        self, scope: Mapping[str, Any] | None, *, subject: Subject | None, client: str
    ) -> Caller:
        """Return the caller; `scope` is None for a call over stdio or from this process."""
        if subject is not None:
            # If the token names no client, use the client's own name.
            known = self._known(replace(subject, client_id=subject.client_id or client))
            return replace(known, is_client_verified=bool(subject.client_id))
        if scope is None:
            if self._locality.are_only:
                return self._local(client)
            return self._anonymous(client, _FROM_INSIDE)
        why_not = self._locality.why_not(scope)
        if why_not is None or self._has_key(scope):
            return self._local(client)
        return self._anonymous(
            client,
            "Nobody can be asked, because the caller is unknown: it is not a program of this "
            f"server's own user on this machine. {why_not} {self._how_to_be_identified(scope)}",
        )

    def _how_to_be_identified(self, scope: Mapping[str, Any]) -> str:
        """Return a sentence that says what makes the caller of this request known."""
        if not self.pairing.is_possible:
            return "Set ELICIT_ISSUER, so that people sign in."
        if self.can_pair(scope):
            return (
                "Give the client the key that `elicit pair` prints, or set ELICIT_ISSUER, so that "
                "people sign in."
            )
        return (
            "If this user runs your proxy, run the proxy as the server's user, and give the client "
            "the key that `elicit pair` prints. Otherwise set ELICIT_ISSUER, so that people sign "
            "in."
        )

    def caller_of_user(self, user: str) -> Caller:
        """Return the caller for a user for whom the application itself asks.

        Raises NotConfigured if no browser could be identified as the user's.
        """
        users, binds = self.users, self._rules.binds_by_code
        if users is None or (users.who is None and not binds):
            raise NotConfigured(_WHO_OR_CODE)
        return Caller(
            owner=self._owners.tag_of_user(user, application=users.application),
            client="",
            by_code=users.who is None,
            is_user=True,
            name=user,
            teams=self.teams_of_user(user),
        )

    def teams_of_user(self, user: str) -> tuple[str, ...]:
        """Return the names of the teams that list this user of the application."""
        return tuple(team.name for team in self._rules.teams if user in team.users)

    def _teams_of(self, issuer: str, claims: Collection[str]) -> tuple[str, ...]:
        return tuple(team.name for team in self._rules.teams if team.has(issuer, claims))

    def sender(self, scope: Mapping[str, Any], *, subject: Subject | None) -> Sender | None:
        """Return the sender of a request, which may be an anonymous caller.

        Return None if the connection ended before its user was known. Anonymous callers from other
        machines share one `key`, because nothing distinguishes them.
        """
        if subject is None and self._locality.is_gone(scope):
            return None
        client = "" if subject is None else subject.client_id
        caller = self.caller(scope, subject=subject, client=client)
        owner = caller.owner
        if owner is not None:
            is_own = owner == self.local_owner
            return Sender(key=f"{owner}/{client}", share=owner, caller=caller, is_own_user=is_own)
        key = (
            f"uid:{self._locality.uid(scope)}" if subject is None else f"{subject.issuer}/{client}"
        )
        share = f"{key}@{address_key(scope)}"
        return Sender(key=key, share=share, caller=caller, is_nameless=True)

    async def viewer(self, scope: Mapping[str, Any], cookies: Mapping[str, str]) -> Viewer | None:
        """Return the person at this browser, or None."""
        session = await self.sessions.of(cookies)
        if session is not None and self._holds(session, scope):
            owner = self._owners.tag(issuer=session.issuer, subject=session.subject)
            age = self._clock() - session.signed_in_at
            counts = age < self._rules.sign_in_counts_for
            teams = self._teams_of(session.issuer, session.claims) if counts else ()
            return Viewer(owner=owner, label=session.label, session=session, teams=teams)
        user = await self._user_at(scope)
        if user is not None:
            return user
        if self._locality.is_local(scope):
            return Viewer(owner=self.local_owner, label="you, on this computer")
        return None

    async def access(
        self, elicitation: Elicitation, scope: Mapping[str, Any], cookies: Mapping[str, str]
    ) -> AccessDecision:
        """Return the decision whether this browser may open the question, with the viewer."""
        if elicitation.is_by_code:
            return AccessDecision(access=self._access_by_code(elicitation, cookies))
        if elicitation.is_for_user:
            user = await self._user_at(scope)
            if user is None:
                return AccessDecision(access=Access.APPLICATION)
            is_owner = user.owner == elicitation.owner
            return AccessDecision(
                access=Access.OPEN if is_owner else Access.OTHER_USER, viewer=user
            )
        viewer = await self.viewer(scope, cookies)
        is_local = elicitation.owner == self.local_owner
        if traits_of(elicitation.kind).is_gate and self.pairs_for_yes(elicitation.owner):
            session = None if viewer is None else viewer.session
            if session is None or session.issuer != LOCAL_ISSUER:
                return AccessDecision(
                    access=Access.PAIR if self.can_pair(scope) else Access.HERE_ONLY
                )
        if viewer is not None and viewer.owner == elicitation.owner:
            return AccessDecision(access=Access.OPEN, viewer=viewer)
        if is_local and self._locality.is_local(scope):
            # The connection identifies the person, even if the session is another person's.
            return AccessDecision(access=Access.OPEN)
        if is_local:
            return AccessDecision(access=Access.PAIR if self.can_pair(scope) else Access.HERE_ONLY)
        if not self._rules.issuers:
            return AccessDecision(access=Access.HERE_ONLY)
        is_signed_in = viewer is not None and viewer.session is not None
        return AccessDecision(
            access=Access.OTHER_PERSON if is_signed_in else Access.SIGN_IN, viewer=viewer
        )

    async def renewed_cookies(self, cookies: Mapping[str, str]) -> tuple[str, ...]:
        """Return the Set-Cookie headers that extend a session in use, if it is time for that."""
        session = await self.sessions.of(cookies)
        renewed = None if session is None else self.sessions.renewed(session)
        return () if renewed is None else (renewed,)

    def code(self, elicitation: Elicitation, cookies: Mapping[str, str]) -> Code | None:
        """Return the code that this browser shows, or None if it has requested no code."""
        codes = elicitation.binding.codes if elicitation.binding is not None else ()
        return next((code for code in codes if self._browser.is_same(code.browser, cookies)), None)

    async def _user_at(self, scope: Mapping[str, Any]) -> Viewer | None:
        if self.users is None or (user := await self.users.at(scope)) is None:
            return None
        owner = self._owners.tag_of_user(user, application=self.users.application)
        teams = self.teams_of_user(user)
        return Viewer(owner=owner, label=self.users.label, is_user=True, teams=teams)

    def _access_by_code(self, elicitation: Elicitation, cookies: Mapping[str, str]) -> Access:
        binding, code = elicitation.binding, self.code(elicitation, cookies)
        if code is not None and is_confirmed(binding, browser=code.browser):
            return Access.OPEN
        if binding is not None and binding.confirmed_at is not None:
            return Access.OTHER_BROWSER
        return Access.CODE

    def _holds(self, session: BrowserSession, scope: Mapping[str, Any]) -> bool:
        """Return True unless the session is a pairing that this browser cannot use.

        A pairing is valid only if the machine cannot identify the user of the connection.
        """
        if session.issuer != LOCAL_ISSUER:
            return True
        return session.subject == self._local_subject and self.can_pair(scope)

    def _has_key(self, scope: Mapping[str, Any]) -> bool:
        return self.can_pair(scope) and self.pairing.has_key(scope)

    def can_pair(self, scope: Mapping[str, Any]) -> bool:
        """Return True if a browser on this connection can be paired with this machine's user."""
        return self.pairing.is_possible and not self._locality.is_another_user(scope)

    def _known(self, subject: Subject) -> Caller:
        # A server's own authentication may return any issuer, even the issuer of this machine's
        # user.
        if not subject.subject or subject.issuer == LOCAL_ISSUER:
            claim = self._rules.issuers.get(subject.issuer, SUBJECT_CLAIM)
            return self._anonymous(
                subject.client_id,
                "Nobody can be asked: the caller's access token identifies no person. It has no "
                f"usable {', '.join(claim)} from a sign-in issuer. The server's operator chooses "
                "these claims with ELICIT_SUBJECT_CLAIM.",
            )
        owner = self._owners.tag(issuer=subject.issuer, subject=subject.subject)
        known = Caller(
            owner=owner,
            client=subject.client_id,
            name=subject.subject,
            issuer=subject.issuer,
            claims=subject.claims,
            signed_in_at=subject.signed_in_at,
            teams=self._teams_of(subject.issuer, subject.claims),
            teams_until=subject.expires_at,
            bearer=subject.bearer,
        )
        if subject.issuer in self._rules.issuers:
            return known
        if self._rules.binds_by_code:
            return replace(known, by_code=True)
        return replace(
            known,
            refusal=(
                f"Nobody can be asked: the caller's access token comes from {subject.issuer}, but "
                "this server's pages do not offer sign-in there, so the server cannot check that "
                "the person who opens a link is the caller. Set ELICIT_ISSUER to that issuer (and "
                "ELICIT_SERVER_ISSUER if the server's own tokens name no issuer), or set "
                "ELICIT_BIND=code, with which the person types a code from the page into the chat."
            ),
        )

    def _local(self, client: str) -> Caller:
        return Caller(owner=self.local_owner, client=client, issuer=LOCAL_ISSUER)

    def _anonymous(self, client: str, refusal: str) -> Caller:
        if self._rules.asks_anonymous:
            return Caller(owner=None, client=client, by_code=True)
        return Caller(owner=None, client=client, refusal=refusal)
