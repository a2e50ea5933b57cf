"""A request for authorisation, as it comes with a browser: what is asked for, or why not.

What could go wrong: a redirect to an address that nobody registered carries the code, or the
browser, to a stranger. Until client and address are known to be right, nothing is ever redirected.
"""

import re
from dataclasses import dataclass, field, replace
from urllib.parse import urlencode

from webapp.http.address import origin_of
from webapp.sandbox.authorization_habits import AuthorizationHabits
from webapp.sandbox.parameters import Parameters, Repeated
from webapp.sandbox.settings import Sandbox

_REDIRECT = re.compile(r"(?P<origin>https?://[^/?#@\\]+)(?P<rest>[/?][!-~]*)?", re.IGNORECASE)
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_STATE_AT_MOST = 4096
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,512}")  # RFC 6749, 3.3
_SCOPES_AT_MOST = 100


class NotRedirected(ValueError):
    """The request stays here: its client or address is not known. The message is for a person."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestWay:
    """Where the browser goes back to, and what the client recognises it by."""

    redirect_uri: str
    state: str | None = field(repr=False)
    issuer: str | None

    def said_by(self, issuer: str | None) -> "RequestWay":
        return replace(self, issuer=issuer)

    def back(self, **parameters: str) -> str:
        """The address to go back to, with the parameters, `state` and `iss`."""
        pairs = dict(parameters)
        if self.state is not None:
            pairs["state"] = self.state
        if self.issuer is not None:
            pairs["iss"] = self.issuer
        mark = "&" if "?" in self.redirect_uri else "?"
        return f"{self.redirect_uri}{mark}{urlencode(pairs)}"


class SentBack(Exception):
    """The request goes back to its client with an error (RFC 6749, 4.1.2.1)."""

    def __init__(self, *, way: RequestWay, error: str, description: str) -> None:
        self.way = way
        self.error = error
        self.description = description
        super().__init__(description)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRequest:
    """What a client may be granted; `user_scopes` are Slack's, for the person's own token."""

    way: RequestWay
    scopes: tuple[str, ...]
    user_scopes: tuple[str, ...]
    challenge: str
    nonce: str | None


def read_request(
    query: str, *, sandbox: Sandbox, habits: AuthorizationHabits
) -> AuthorizationRequest:
    """Check everything that a browser brought.

    Raises NotRedirected where it must not be sent back, and SentBack where it must.
    """
    try:
        parameters = Parameters(query)
        client_id = parameters.get("client_id")
        redirect_uri = parameters.get("redirect_uri")
    except ValueError as err:
        raise NotRedirected("This request is not one that an application would send.") from err
    if client_id != sandbox.client_id:
        raise NotRedirected("No application with this client id is known here.")
    if redirect_uri is None or not _is_accepted(redirect_uri, sandbox=sandbox):
        raise NotRedirected("The application wants you sent to an address that is not its own.")
    issuer = None if habits.issuer is None else sandbox.url + habits.issuer
    states = parameters.all("state")
    way = RequestWay(
        redirect_uri=redirect_uri,
        state=states[0] if len(states) == 1 and len(states[0]) <= _STATE_AT_MOST else None,
        issuer=issuer,
    )
    try:
        parameters.check_unrepeated()
    except Repeated as err:
        raise SentBack(way=way, error="invalid_request", description=str(err)) from err
    challenge = _checked_challenge(parameters, habits=habits, way=way)
    user_scope = parameters.get("user_scope") if habits.says_ok else None
    scopes = _checked_scopes(parameters.get("scope"), habits=habits, way=way)
    user_scopes = _checked_scopes(user_scope, habits=habits, way=way)
    if habits.needs_scope and not scopes + user_scopes:
        raise SentBack(way=way, error="invalid_scope", description="No scope is asked for.")
    return AuthorizationRequest(
        way=way,
        scopes=scopes,
        user_scopes=user_scopes,
        challenge=challenge,
        nonce=parameters.get("nonce"),
    )


def _is_accepted(redirect_uri: str, *, sandbox: Sandbox) -> bool:
    """Whether an address stands at one of the origins; compared in parts, never as text."""
    match = _REDIRECT.fullmatch(redirect_uri)
    if match is None or "#" in redirect_uri or "\\" in redirect_uri:
        return False
    origin = origin_of(match["origin"])
    return origin is not None and origin in {origin_of(text) for text in sandbox.redirect_origins}


def _checked_scopes(
    text: str | None, *, habits: AuthorizationHabits, way: RequestWay
) -> tuple[str, ...]:
    asked = re.split(r"[ ,]+" if habits.takes_commas else r" ", text or "")
    scopes = tuple(dict.fromkeys(scope for scope in asked if scope))
    # A tool may ask for any that its real provider has, and there are thousands of them.
    if len(scopes) > _SCOPES_AT_MOST or not all(map(_SCOPE.fullmatch, scopes)):
        raise SentBack(
            way=way, error="invalid_scope", description="A scope is asked for that cannot be one."
        )
    return scopes


def _checked_challenge(
    parameters: Parameters, *, habits: AuthorizationHabits, way: RequestWay
) -> str:
    """The PKCE challenge, once the request's shape is right."""
    response_type = parameters.get("response_type")
    if response_type != "code" and (response_type or habits.needs_types):
        raise SentBack(
            way=way,
            error="unsupported_response_type" if response_type else "invalid_request",
            description="The response type must be code.",
        )
    challenge = parameters.get("code_challenge")
    if (
        parameters.get("code_challenge_method") != "S256"
        or challenge is None
        or not _CHALLENGE.fullmatch(challenge)
    ):
        raise SentBack(
            way=way,
            error="invalid_request",
            description="PKCE with the method S256 is required.",
        )
    if habits.is_openid and parameters.get("prompt") == "none":
        raise SentBack(way=way, error="login_required", description="Nobody is signed in here.")
    return challenge
