"""Signing in: the redirect to the issuer and back, and the resulting session.

Risks: a sign-in that somebody else began (login CSRF). The browser's state is therefore sealed in
its own cookie, which works once and for ten minutes. Another risk is a response to another sign-in
request. Such a response is ignored (flows.oauth.sign_in).
"""

import hmac
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from flows.elicitation.flow import CallbackParams
from flows.errors import Failed
from flows.oauth.access_token import BadBearer, issuer_in
from flows.oauth.authorization_code import Mixed
from flows.oauth.logout import logout_key_id, verified_logout
from flows.oauth.provider import Client
from flows.oauth.registered_client import RegisteredClient
from flows.oauth.sign_in import STATE_BYTES, SignIn
from webapp.deadline import Clock
from webapp.http.client import Outbound
from webapp.identity.issuer import Issuer
from webapp.identity.logout import Logouts
from webapp.identity.sessions import BrowserSession, Sessions

CALLBACK_PATH = "/signin/callback"
LOGOUT_PATH = "/signin/logout"
SIGNED_OUT_PATH = "/signout/done"
_SIGNED_OUT = "signed out"


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EndSession:
    """The form with which the browser ends the session at its issuer, and the cookie to set."""

    url: str
    issuer: str
    fields: Sequence[tuple[str, str]]
    cookie: str


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
        self.client = client
        redirect_uri = public_url.rstrip("/") + named_path(CALLBACK_PATH, name)
        self.registration = RegisteredClient(
            client=client, redirect_uri=redirect_uri, claim=claim, table=name
        )
        self.flow = SignIn(
            client=client,
            redirect_uri=redirect_uri,
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
        logouts: Logouts,
        public_url: str,
        clock: Clock,
    ) -> None:
        self.places: Mapping[str, SignInPlace] = {place.name: place for place in places}
        # Browsers apply `form-action` to every redirect that follows a form.
        is_https = all(place.issuer.url.startswith("https:") for place in places)
        self.form_targets = ("https:",) if is_https else ("http:", "https:")
        self._outbound = outbound
        self._sessions = sessions
        self._logouts = logouts
        self._signed_out_url = public_url.rstrip("/") + SIGNED_OUT_PATH
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
        place = self._place_of(issuer)
        return None if place is None else place.label

    def _place_of(self, issuer: str) -> SignInPlace | None:
        places = self.places.values()
        return next((each for each in places if issuer in each.issuer.provider.issuers), None)

    async def finish(self, arrival: CallbackParams, cookies: Mapping[str, str], *, at: str) -> Back:
        """Complete a sign-in. `at` is the issuer whose redirect address was called.

        Raises Mixed if the response belongs to another sign-in request, Denied, or Failed.
        """
        pending = self._sessions.sign_in_state(cookies)
        if pending is None:
            raise Mixed("this browser has no pending sign-in")
        if pending.at != at:
            raise Mixed("another issuer answers")
        place, began = self.places[at], self._clock()
        metadata = await place.issuer.metadata()
        talk = place.flow.finish(
            arrival, attempt_data=pending.kept, metadata=metadata, now=self._clock()
        )
        signed_in = await self._outbound.run(talk)
        # A sign-out that the issuer reports during the exchange ends this session too.
        session = await self._sessions.start(signed_in, cookies=cookies, at=began)
        if metadata.end_session is not None:
            await self._logouts.store_id_token(session, signed_in.id_token)
        cookies_set = (self._sessions.set_cookie(session), self._sessions.forget_leaving())
        return Back(path=pending.back, cookies=cookies_set, session=session)

    async def end_session(self, session: BrowserSession) -> EndSession | None:
        """Return the form that ends this session at its issuer, or None if the issuer has none."""
        place = self._place_of(session.issuer)
        if place is None:
            return None
        try:
            url = (await place.issuer.metadata()).end_session
        except Failed:
            return None
        if url is None:
            return None
        state = secrets.token_urlsafe(STATE_BYTES)
        return EndSession(
            url=url,
            issuer=place.label,
            fields=place.flow.end_session(
                await self._logouts.take_id_token(session),
                state=state,
                redirect_uri=self._signed_out_url,
            ),
            cookie=self._sessions.leave({_SIGNED_OUT: state}, back="/", at=place.name),
        )

    def has_ended(self, arrival: CallbackParams, cookies: Mapping[str, str]) -> bool:
        """Return True if the browser returns from the issuer where it ended its session."""
        pending = self._sessions.sign_in_state(cookies)
        stored = None if pending is None else pending.kept
        sent = [value for name, value in arrival.parameters if name == "state"]
        if not isinstance(stored, dict) or _SIGNED_OUT not in stored or len(sent) != 1:
            return False
        return hmac.compare_digest(
            sent[0].encode("utf-8", "replace"), str(stored[_SIGNED_OUT]).encode()
        )

    async def receive_logout(self, token: str, *, at: str) -> None:
        """End the sessions that a logout token names. `at` is the issuer whose address was called.

        Raises:
            BadBearer: The token is not a valid logout token of this issuer.
            Failed: The issuer's keys are not available.
            StoreUnavailable: The sign-out could not be stored.
        """
        place = self.places[at]
        provider = place.issuer.provider
        key_id, issuer = logout_key_id(token, provider), issuer_in(token)
        if issuer is None or issuer not in provider.issuers:
            raise BadBearer("issuer", expected=[*provider.issuers])
        keys = provider.keys_from(await place.issuer.keys(key_id), issuer=issuer)
        now = self._clock()
        await self._logouts.record(
            verified_logout(token, client=place.client, issuer=issuer, keys=keys, now=now)
        )


def named_path(path: str, name: str) -> str:
    """Return the path for the issuer of this name, which is "" for the first one."""
    return f"{path}/{name}" if name else path
