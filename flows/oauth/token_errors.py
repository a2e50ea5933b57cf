"""Refusals of a token endpoint: read in any format that providers use, and sorted into classes.

Risks: a valid account is dropped because a provider or the network is out of order, or an ended
account stays forever because the provider sends a non-standard error. So each refusal gets a class
(`RefusalClass`):

- `ended`: the standard, or the provider's declaration, says that the refresh token has ended.
- `client`: the provider does not accept the client id, the secret, the grant type, or a request
  without DPoP. Only the operator can correct that, and no account is at fault.
- `redirect`: the provider does not accept the redirect address. Only the operator can correct it.
- `passing`: the provider or the network is temporarily out of order. The refusal says nothing about
  the account.
- `unsure`: any other refusal. It ends an account only if something else proves that the grant has
  ended (webapp.oauth.access_tokens).

`unauthorized_client` is `unsure`: providers send this code if one account has ended, and also if
the client is not accepted at all (webapp.oauth.token_failures). A successful reply without a token
is a refusal too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, cast

import httpx

from flows.errors import Failed
from flows.oauth.dpop import ERRORS as PROOF_ERRORS
from flows.oauth.provider import KnownRefusal, Provider, RefusalClass
from flows.oauth.requests import SetupFault, Unreachable
from flows.oauth.responses import (
    ERROR_CODE,
    TokenReply,
    is_temporary_reply,
    member_of,
    members_of,
    object_in,
    read_token_reply,
)

DESCRIPTION_AT_MOST: Final = 300  # characters of what the provider says, for the log
# Errors after which the person has to connect again (RFC 6749, 5.2; OIDC Core 1.0, 3.1.2.6).
ENDED: Final = frozenset(
    {"invalid_grant", "interaction_required", "login_required", "consent_required"}
)
_CLIENT: Final = frozenset({"invalid_client", "unsupported_grant_type"})  # RFC 6749, 5.2
UNAUTHORIZED_CLIENT: Final = "unauthorized_client"
_CLIENT_IN_CALLBACK: Final = frozenset({UNAUTHORIZED_CLIENT, "unsupported_response_type"})
_PASSING: Final = frozenset({"temporarily_unavailable", "server_error", "slow_down"})
# Errors about a request that the issuer never accepts from this client (RFC 6749; RFC 8707, 2).
_OF_REQUEST: Final = frozenset(
    {
        *(UNAUTHORIZED_CLIENT, "unsupported_grant_type", "unsupported_response_type"),
        "invalid_scope",
    }
)
OF_TARGET: Final = frozenset({"invalid_target", "invalid_resource"})  # RFC 8707, 2; Entra
_NO_ENDPOINT: Final = frozenset(
    {HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.GONE}
)
_DESCRIPTIONS: Final = ("error_description", "message", "error_message", "errmsg", "detail")
_OF_PROOF: Final = re.compile(r"\bdpop\b", re.IGNORECASE)
_OF_REDIRECT: Final = re.compile(r"redirect[ _]ur[il]", re.IGNORECASE)
# A description that lists all possible reasons says nothing about the redirect address.
_OF_OTHER_REASONS: Final = re.compile(r"expired|revoked|already", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A refusal: its class, and the provider's error code, if the code can be shown.

    `sentence` is the declaration's text for people. `description` is the provider's own text, for
    logs only. `is_readable` is True if the body was in the provider's format, or if an error came
    without a body. It is False for a page of a proxy or firewall. `methods` are the methods of
    client authentication that the metadata names.
    """

    status: int
    means: RefusalClass
    error: str | None = None
    sentence: str | None = None
    description: str | None = None
    is_readable: bool = True
    methods: tuple[str, ...] = ()

    @property
    def is_temporary(self) -> bool:
        return self.means == "passing"

    @property
    def is_page(self) -> bool:
        """True for a redirect or a page, which names no error and holds no token."""
        return not self.is_readable and self.status < HTTPStatus.BAD_REQUEST

    @property
    def wants_proof(self) -> bool:
        """True if the provider wants the proof of a key (DPoP), or did not accept it."""
        return self.error in PROOF_ERRORS or (
            self.means == "client" and _OF_PROOF.search(self.description or "") is not None
        )

    @property
    def shown(self) -> str:
        if self.error:
            return f" ({self.error})"
        has_status = self.is_page or self.status >= HTTPStatus.BAD_REQUEST
        return f" (HTTP {self.status})" if has_status else ""

    @property
    def is_unauthorized(self) -> bool:
        """True for status 401 without an error code. Such a reply refuses the client (5.2)."""
        return self.status == HTTPStatus.UNAUTHORIZED and self.error is None

    @property
    def is_of_request(self) -> bool:
        """True if the issuer refuses the grant type, the scopes or the API for this client."""
        return self.error in _OF_REQUEST | OF_TARGET

    @property
    def is_wrong_endpoint(self) -> bool:
        """True if no token endpoint answered: the address leads to nothing, or to a page."""
        is_none = self.status in _NO_ENDPOINT and self.error is None
        return self.means == "unsure" and (is_none or not self.is_readable)


class TokenRefused(Failed):
    """The token endpoint refused; `refusal` has the class and the error code."""

    def __init__(self, message: str, *, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(message)


def refusal_in(reply: httpx.Response, provider: Provider) -> Refusal | None:
    """Return the refusal in a reply, or None if the reply is not a refusal."""
    says = members_of(reply, provider)
    return _refusal(reply, provider, says) if _is_refusal(reply, says) else None


def no_token_in(reply: httpx.Response, provider: Provider) -> Refusal:
    """Return the refusal in a reply that names no error and holds no token that can be used.

    Some providers answer 200 and describe the error in members of their own.
    """
    return _refusal(reply, provider, members_of(reply, provider))


def refusal_in_callback(error: str, description: str | None, provider: Provider) -> Refusal:
    """Return the refusal that a browser brought back from the authorization endpoint.

    The person at the browser can have forged this refusal.
    """
    refusal = _read({"error": error, "error_description": description}, provider, status=200)
    if refusal.means == "unsure" and error in _CLIENT_IN_CALLBACK:
        return replace(refusal, means="client")
    return refusal


def refused(
    refusal: Refusal, provider: Provider, *, otherwise: str, methods: tuple[str, ...] = ()
) -> TokenRefused:
    """Return the TokenRefused for a refusal.

    `otherwise` is the error's message if the operator cannot correct the cause, and `methods` are
    as in `Refusal`.
    """
    label = provider.label
    match refusal.means:
        case "client" if refusal.wants_proof:
            says = (
                f"{label} requires DPoP, and this server does not use it there, or not as {label} "
                f"expects{refusal.shown}. Only the server's operator can correct that: trying "
                "again does not help until then."
            )
        case "client":
            says = (
                f"{label} refuses this server's client id or secret{refusal.shown}. Only the "
                "server's operator can correct that: trying again, or connecting again, does not "
                "help until then."
            )
        case "redirect":
            says = (
                f"{label} does not accept this server's redirect address{refusal.shown}. Only the "
                "server's operator can correct that: trying again does not help until then."
            )
        case _:
            says = f"{otherwise}{refusal.shown}."
    known = replace(refusal, methods=methods or refusal.methods)
    return TokenRefused(refusal.sentence or says, refusal=known)


def is_client_or_redirect_refused(error: Exception) -> bool:
    """Return True if only the operator can correct what the provider refused."""
    return isinstance(error, TokenRefused) and error.refusal.means in ("client", "redirect")


def needs_operator(error: Exception) -> bool:
    """Return True if trying again does not help: only the operator can correct the fault."""
    if isinstance(error, TokenRefused):
        refusal = error.refusal
        is_of_client = is_client_or_redirect_refused(error) or refusal.is_unauthorized
        return is_of_client or refusal.is_of_request or refusal.is_wrong_endpoint
    return isinstance(error, SetupFault) or (isinstance(error, Unreachable) and error.is_lasting)


def is_temporary_error(error: Exception) -> bool:
    """Return True if the provider could not answer now, and may answer a later attempt."""
    if isinstance(error, TokenRefused):
        return error.refusal.is_temporary
    if isinstance(error, Unreachable):
        return not error.is_lasting
    return isinstance(error.__cause__, httpx.HTTPError)


def sentence_for(description: Any, provider: Provider) -> str | None:
    """Return the sentence that the declaration has for a code in the description."""
    if not isinstance(description, str):
        return None
    found = (words for code, words in provider.troubles.items() if code in description)
    return next(found, None)


def tokens_in(
    reply: httpx.Response,
    provider: Provider,
    *,
    now: datetime,
    is_bound: bool = False,
    methods: tuple[str, ...] = (),
) -> TokenReply:
    """Read the tokens of a reply.

    `is_bound` is as in `read_token_reply`, and `methods` as in `Refusal`.

    Raises:
        TokenRefused: The provider refused.
        Failed: The reply holds no token that can be used.
    """
    says = members_of(reply, provider)
    if _is_refusal(reply, says) or not _is_readable(reply, says):
        refusal = _refusal(reply, provider, says)
        otherwise = f"{provider.label} did not issue an access token"
        raise refused(refusal, provider, otherwise=otherwise, methods=methods)
    return read_token_reply(reply, provider, now=now, is_bound=is_bound, content=says)


def _is_refusal(reply: httpx.Response, says: Mapping[str, Any]) -> bool:
    has_error = says.get("error") not in (None, "", False) or says.get("ok") is False
    return has_error or reply.status_code >= HTTPStatus.BAD_REQUEST


def _is_readable(reply: httpx.Response, says: Mapping[str, Any]) -> bool:
    is_bare = reply.is_error and not reply.content
    return bool(says) or is_bare or object_in(reply) is not None


def _refusal(reply: httpx.Response, provider: Provider, says: Mapping[str, Any]) -> Refusal:
    found = _read(says, provider, status=reply.status_code)
    means = found.means
    if reply.status_code == HTTPStatus.INTERNAL_SERVER_ERROR and means == "ended":
        means = "unsure"  # some providers send the standard's error code with status 500
    elif is_temporary_reply(reply):
        means = "passing"
    return replace(found, means=means, is_readable=_is_readable(reply, says))


def _read(says: Mapping[str, Any], provider: Provider, *, status: int) -> Refusal:
    error: Any = says.get("error")
    if isinstance(error, dict):  # Dropbox
        error = cast("dict[str, Any]", error).get(".tag")
    code = error if isinstance(error, str) and ERROR_CODE.fullmatch(error) else None
    description = _description_in(says)
    means = _class_of(code, description or "")
    # in reverse order, so that the first matching entry is applied last and wins
    for known in reversed(provider.refusals):
        if _is_known(known, status, says, description=description or ""):
            means = known.means
    return Refusal(
        status=status,
        means=means,
        error=code,
        sentence=sentence_for(says.get("error_description"), provider),
        description=description,
    )


def _class_of(code: str | None, description: str) -> RefusalClass:
    """Return the class of a refusal by the standard's error codes."""
    if code in _PASSING:
        return "passing"
    if code in _CLIENT or code in PROOF_ERRORS:
        return "client"
    if code in ("invalid_request", "invalid_grant") and _OF_PROOF.search(description):
        return "client"
    is_of_redirect = _OF_REDIRECT.search(description) and not _OF_OTHER_REASONS.search(description)
    if code == "redirect_uri_mismatch" or is_of_redirect:
        return "redirect"
    return "ended" if code in ENDED else "unsure"


def _is_known(
    known: KnownRefusal, status: int, says: Mapping[str, Any], *, description: str
) -> bool:
    value = member_of(says, known.member)
    return (
        known.status in (None, status)
        and (known.value is None or _as_text(value) == known.value)
        and (known.description or "").casefold() in description.casefold()
    )


def _as_text(value: object) -> str | None:
    is_one = isinstance(value, str | int) and not isinstance(value, bool)
    return str(value) if is_one else None


def _description_in(says: Mapping[str, Any]) -> str | None:
    """Return the provider's own text about an error, at most DESCRIPTION_AT_MOST characters."""
    error = says.get("error")
    inside = cast("dict[str, Any]", error) if isinstance(error, dict) else {}
    texts = (each.get(name) for each in (says, inside) for name in _DESCRIPTIONS)
    found = next((text for text in texts if isinstance(text, str) and text), None)
    return None if found is None else found[:DESCRIPTION_AT_MOST]
