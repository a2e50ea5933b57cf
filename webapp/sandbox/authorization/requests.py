"""An authorization request of a browser: what it asks for, or why it is refused.

Risks: a redirect to an unregistered address brings the code, or the browser, to a stranger. So no
response redirects until the client and the address are verified.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qsl, urlencode

from webapp.http.address import origin_of
from webapp.sandbox.authorization.habits import AuthorizationHabits
from webapp.sandbox.settings import Sandbox

# The parameters of a request, each of which may come once.
#
# Risks: two readers of a repeated parameter can read two different values. So a repeated parameter
# is refused (RFC 6749, 3.1).

_FIELDS_AT_MOST = 40


class Repeated(ValueError):
    """A parameter came more than once."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"The parameter {name} came more than once.")


class Parameters:
    """The parameters of a query or a form. An empty value counts as missing."""

    def __init__(self, text: str | bytes) -> None:
        """Parse the text.

        Raises:
            ValueError: The text is not a form, or has too many fields.
        """
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        self._pairs = parse_qsl(text, errors="strict", max_num_fields=_FIELDS_AT_MOST)

    def get(self, name: str) -> str | None:
        """Return the value of a parameter, or None.

        Raises:
            Repeated: The parameter came more than once.
        """
        values = self.all(name)
        if len(values) > 1:
            raise Repeated(name)
        return values[0] if values else None

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def check_unrepeated(self) -> None:
        """Check that no parameter came more than once.

        Raises:
            Repeated: A parameter came more than once.
        """
        for name, count in Counter(key for key, _ in self._pairs).items():
            if count > 1:
                raise Repeated(name)


_REDIRECT = re.compile(r"(?P<origin>https?://[^/?#@\\]+)(?P<rest>[/?][!-~]*)?", re.IGNORECASE)
_CHALLENGE = re.compile(r"[A-Za-z0-9_-]{43}")
_STATE_AT_MOST = 4096
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]{1,512}")  # RFC 6749, 3.3
_SCOPES_AT_MOST = 100


class NotRedirected(ValueError):
    """The request is not redirected, because its client or address is unknown.

    The message is for a person.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientRedirect:
    """The redirect back to the client: its address, state and issuer."""

    redirect_uri: str
    state: str | None = field(repr=False)
    issuer: str | None

    def with_issuer(self, issuer: str | None) -> "ClientRedirect":
        return replace(self, issuer=issuer)

    def back(self, **parameters: str) -> str:
        """Return the address to redirect back to, with the parameters, `state` and `iss`."""
        pairs = dict(parameters)
        if self.state is not None:
            pairs["state"] = self.state
        if self.issuer is not None:
            pairs["iss"] = self.issuer
        mark = "&" if "?" in self.redirect_uri else "?"
        return f"{self.redirect_uri}{mark}{urlencode(pairs)}"


class SentBack(Exception):
    """The request is redirected back to its client with an error (RFC 6749, 4.1.2.1)."""

    def __init__(self, *, redirect: ClientRedirect, error: str, description: str) -> None:
        self.redirect = redirect
        self.error = error
        self.description = description
        super().__init__(description)


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRequest:
    """A valid request. `user_scopes` are Slack's, for the person's own token."""

    redirect: ClientRedirect
    scopes: tuple[str, ...]
    user_scopes: tuple[str, ...]
    challenge: str
    nonce: str | None


def read_request(
    query: str, *, sandbox: Sandbox, habits: AuthorizationHabits
) -> AuthorizationRequest:
    """Check an authorization request of a browser.

    Raises:
        NotRedirected: The browser must not be redirected back.
        SentBack: The request is invalid, and the browser is redirected back with the error.
    """
    try:
        parameters = Parameters(query)
        client_id = parameters.get("client_id")
        redirect_uri = parameters.get("redirect_uri")
    except ValueError as err:
        raise NotRedirected("The request has invalid or repeated parameters.") from err
    if client_id != sandbox.client_id:
        raise NotRedirected("No application with this client id is known here.")
    if redirect_uri is None or not _is_accepted(redirect_uri, sandbox=sandbox):
        raise NotRedirected("The application wants to send you to an address that is not its own.")
    issuer = None if habits.issuer is None else sandbox.url + habits.issuer
    states = parameters.all("state")
    redirect = ClientRedirect(
        redirect_uri=redirect_uri,
        state=states[0] if len(states) == 1 and len(states[0]) <= _STATE_AT_MOST else None,
        issuer=issuer,
    )
    scopes = _scopes(parameters.all("scope"), habits=habits)
    user_scopes = _scopes(parameters.all("user_scope") if habits.says_ok else [], habits=habits)
    for error, description in _problems(parameters, scopes, user_scopes, habits=habits):
        raise SentBack(redirect=redirect, error=error, description=description)
    return AuthorizationRequest(
        redirect=redirect,
        scopes=scopes,
        user_scopes=user_scopes,
        challenge=parameters.get("code_challenge") or "",
        nonce=parameters.get("nonce"),
    )


def _problems(
    parameters: Parameters, *lists: tuple[str, ...], habits: AuthorizationHabits
) -> Iterator[tuple[str, str]]:
    """Yield each error of a request with its description, the most serious first."""
    try:
        parameters.check_unrepeated()
    except Repeated as err:
        yield "invalid_request", str(err)
    response_type = parameters.get("response_type")
    if response_type != "code" and (response_type or habits.needs_types):
        error = "unsupported_response_type" if response_type else "invalid_request"
        yield error, "The response type must be code."
    challenge = parameters.get("code_challenge") or ""
    if parameters.get("code_challenge_method") != "S256" or not _CHALLENGE.fullmatch(challenge):
        yield "invalid_request", "PKCE with the method S256 is required."
    if habits.is_openid and parameters.get("prompt") == "none":
        yield "login_required", "Nobody is signed in here."
    # Check only the syntax of scopes: real providers have thousands, and a tool can ask for any.
    for scopes in lists:
        if len(scopes) > _SCOPES_AT_MOST or not all(map(_SCOPE.fullmatch, scopes)):
            yield "invalid_scope", "One of the scopes is not valid."
    if habits.needs_scope and not any(lists):
        yield "invalid_scope", "The request names no scope."


def _scopes(asked: list[str], *, habits: AuthorizationHabits) -> tuple[str, ...]:
    """Return the requested scopes in their order, without duplicates."""
    separators = r"[ ,]+" if habits.takes_commas else r" "
    names = [name for text in asked for name in re.split(separators, text)]
    return tuple(dict.fromkeys(name for name in names if name))


def _is_accepted(redirect_uri: str, *, sandbox: Sandbox) -> bool:
    """Return True if the address has a redirect origin of the sandbox. Compare parsed origins."""
    match = _REDIRECT.fullmatch(redirect_uri)
    if match is None or "#" in redirect_uri or "\\" in redirect_uri:
        return False
    origin = origin_of(match["origin"])
    return origin is not None and origin in {origin_of(text) for text in sandbox.redirect_origins}
