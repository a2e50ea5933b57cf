"""Signing in: the redirect to the issuer and back, and the resulting session.

Risks: a sign-in that somebody else began (login CSRF). The browser's state is therefore sealed in
its own cookie, which works once and for ten minutes. Another risk is a response to another sign-in
request. Such a response is ignored (flows.oauth.sign_in).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from flows.elicitation.flow import CallbackParams
from flows.oauth.authorization_code import Mixed
from flows.oauth.provider import Client
from flows.oauth.sign_in import SignIn
from webapp.deadline import Clock
from webapp.http.client import Outbound
from webapp.identity.issuer import Issuer
from webapp.identity.sessions import BrowserSession, Sessions

CALLBACK_PATH = "/signin/callback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """The address to which the browser is redirected, and the cookie with the sign-in's state."""

    url: str
    cookie: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Back:
    """The path where the browser continues, the cookies to set, and the new session."""

    path: str
    cookies: tuple[str, ...]
    session: BrowserSession


class SigningIn:
    """The sign-in at the one issuer of this server."""

    def __init__(
        self,
        *,
        issuer: Issuer,
        client: Client,
        claim: tuple[str, ...],
        scopes: tuple[str, ...] = (),
        wanted: frozenset[tuple[str, str]] = frozenset(),
        public_url: str,
        outbound: Outbound,
        sessions: Sessions,
        clock: Clock,
    ) -> None:
        self.label = client.provider.label
        # Browsers apply `form-action` to every redirect that follows a form.
        self.form_targets = ("https:",) if issuer.url.startswith("https:") else ("http:", "https:")
        self._issuer = issuer
        self._signin = SignIn(
            client=client,
            redirect_uri=public_url.rstrip("/") + CALLBACK_PATH,
            claim=claim,
            scopes=scopes,
            wanted=wanted,
        )
        self._outbound = outbound
        self._sessions = sessions
        self._clock = clock

    async def begin(self, *, back: str, switches: bool) -> Gone:
        """Start a sign-in. Raises Failed if the issuer refuses or does not answer."""
        metadata = await self._issuer.metadata()
        talk = self._signin.begin(metadata, now=self._clock(), switches=switches)
        departure = await self._outbound.run(talk)
        return Gone(url=departure.url, cookie=self._sessions.leave(departure.kept, back=back))

    def back_of(self, cookies: Mapping[str, str]) -> str:
        """Return the path to which this browser wanted to go, or "/"."""
        pending = self._sessions.sign_in_state(cookies)
        return "/" if pending is None else pending.back

    async def finish(self, arrival: CallbackParams, cookies: Mapping[str, str]) -> Back:
        """Complete a sign-in. Raises Mixed for another request's answer, Denied, or Failed."""
        pending = self._sessions.sign_in_state(cookies)
        if pending is None:
            raise Mixed("this browser did not leave")
        talk = self._signin.finish(
            arrival,
            kept=pending.kept,
            metadata=await self._issuer.metadata(),
            now=self._clock(),
        )
        session = await self._sessions.start(await self._outbound.run(talk), cookies=cookies)
        cookies_set = (self._sessions.set_cookie(session), self._sessions.forget_leaving())
        return Back(path=pending.back, cookies=cookies_set, session=session)
