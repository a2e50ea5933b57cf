"""Signing in: the redirect to the issuer and back, and the resulting session.

Risks: a sign-in that somebody else began (login CSRF). The browser's state is therefore sealed in
its own cookie, which works once and for ten minutes. Another risk is a response to another sign-in
request. Such a response is ignored (flows.oauth.sign_in).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

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


class SignInPlace:
    """An issuer where people can sign in. `name` is its table in the settings, "" for the first.

    Each issuer has a redirect address of its own, so that no other issuer can answer for it.
    """

    def __init__(
        self,
        *,
        name: str = "",
        issuer: Issuer,
        client: Client,
        claim: tuple[str, ...],
        scopes: tuple[str, ...] = (),
        wanted: frozenset[tuple[str, str]] = frozenset(),
        public_url: str,
    ) -> None:
        self.name = name
        self.label = client.provider.label
        self.site = urlsplit(issuer.url).netloc
        self.issuer = issuer
        self.flow = SignIn(
            client=client,
            redirect_uri=public_url.rstrip("/") + callback_path(name),
            claim=claim,
            scopes=scopes,
            wanted=wanted,
        )


class SigningIn:
    """The sign-in at the issuers of this server, by the names of their tables."""

    def __init__(
        self,
        places: Sequence[SignInPlace],
        *,
        outbound: Outbound,
        sessions: Sessions,
        clock: Clock,
    ) -> None:
        self.places: Mapping[str, SignInPlace] = {place.name: place for place in places}
        # Browsers apply `form-action` to every redirect that follows a form.
        is_https = all(place.issuer.url.startswith("https:") for place in places)
        self.form_targets = ("https:",) if is_https else ("http:", "https:")
        self._outbound = outbound
        self._sessions = sessions
        self._clock = clock

    async def begin(self, *, at: str, back: str, switches: bool) -> Gone:
        """Start a sign-in. Raises Failed if the issuer refuses or does not answer."""
        place = self.places[at]
        metadata = await place.issuer.metadata()
        talk = place.flow.begin(metadata, now=self._clock(), switches=switches)
        departure = await self._outbound.run(talk)
        cookie = self._sessions.leave(departure.kept, back=back, at=at)
        return Gone(url=departure.url, cookie=cookie)

    def back_of(self, cookies: Mapping[str, str]) -> str:
        """Return the path to which this browser wanted to go, or "/"."""
        pending = self._sessions.sign_in_state(cookies)
        return "/" if pending is None else pending.back

    def label_of(self, issuer: str) -> str | None:
        """Return the label of the place to sign in with this issuer, or None if there is none."""
        places = self.places.values()
        found = (each for each in places if issuer in each.issuer.provider.issuers)
        return next((each.label for each in found), None)

    async def finish(self, arrival: CallbackParams, cookies: Mapping[str, str], *, at: str) -> Back:
        """Complete a sign-in. `at` is the issuer whose redirect address was called.

        Raises Mixed if the response belongs to another sign-in request, Denied, or Failed.
        """
        pending = self._sessions.sign_in_state(cookies)
        if pending is None:
            raise Mixed("this browser has no pending sign-in")
        if pending.at != at:
            raise Mixed("another issuer answers")
        place = self.places[at]
        talk = place.flow.finish(
            arrival,
            kept=pending.kept,
            metadata=await place.issuer.metadata(),
            now=self._clock(),
        )
        session = await self._sessions.start(await self._outbound.run(talk), cookies=cookies)
        cookies_set = (self._sessions.set_cookie(session), self._sessions.forget_leaving())
        return Back(path=pending.back, cookies=cookies_set, session=session)


def callback_path(name: str) -> str:
    """Return the path of the redirect address for the issuer of this name."""
    return f"{CALLBACK_PATH}/{name}" if name else CALLBACK_PATH
