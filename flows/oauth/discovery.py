"""Discovery of an issuer's endpoints and abilities (OpenID Connect Discovery, RFC 8414).

Risks:

- The metadata belongs to another issuer. So its `issuer` must equal the declared issuer.
- The metadata names an http address, and so makes this server send requests to a service on its own
  machine. So http addresses are accepted only from an issuer on this machine.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from flows.elicitation.flow import Talk
from flows.errors import Failed, InvalidQuestion
from flows.oauth.declaration import SHARED_TENANT, issuer_of_tenant
from flows.oauth.provider import Provider
from flows.oauth.requests import SetupFault, ask, get
from flows.oauth.responses import is_list, is_temporary_reply, object_in
from flows.origin import origin_of

SHOWN_AT_MOST: Final = 200  # characters of an issuer's own text, in a log
_NAMES_AT_MOST: Final = 100  # names in one list of the metadata
# Map each registered name of a client authentication method to this server's name for the method.
METHODS: Final = {
    "client_secret_basic": "basic",
    "client_secret_post": "post",
    "private_key_jwt": "private_key_jwt",
    "client_secret_jwt": "client_secret_jwt",
    "none": "none",
}


class MetadataRefused(SetupFault):
    """The metadata cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The part of an issuer's metadata (RFC 8414) that the flow and the doctor need.

    The lists are empty if the issuer does not publish them.

    - `ends_sessions`: the issuer reports the end of a session (OpenID Connect Back-Channel Logout).
    - `par`: the endpoint for pushed authorization requests (RFC 9126).
    - `client_auths`, `revoke_auths`, `introspect_auths`: the client authentication methods of the
      token, revocation and introspection endpoints. If the issuer publishes no methods for the
      last two, they have the methods of the token endpoint.
    """

    authorize: str
    token: str
    jwks: str | None
    userinfo: str | None
    introspect: str | None
    revoke: str | None
    device: str | None
    end_session: str | None
    ends_sessions: bool
    par: str | None
    requires_par: bool
    sends_issuer: bool
    client_auths: tuple[str, ...]
    revoke_auths: tuple[str, ...]
    introspect_auths: tuple[str, ...]
    assertion_algorithms: tuple[str, ...]
    id_token_algorithms: tuple[str, ...]
    dpop_algorithms: tuple[str, ...]
    subject_types: tuple[str, ...]

    def client_auth(self, method: str) -> str:
        return client_auth_of(method, self.client_auths)


def client_auth_of(method: str, accepted: Sequence[str]) -> str:
    """Return the client authentication method to use.

    The result is `method`, except if `method` is `basic` and the issuer accepts only `post`, or the
    reverse. Then the result is the accepted method.
    """
    if method not in ("basic", "post"):
        return method
    other = "post" if method == "basic" else "basic"
    is_other = f"client_secret_{method}" not in accepted and f"client_secret_{other}" in accepted
    return other if is_other else method


def client_auth_now(provider: Provider, *, before: str | None) -> str:
    """Return the method of client authentication for an account that was connected with `before`.

    Return the declared method, because the operator may have changed it together with the secret.
    But if the provider uses discovery, and one method is `basic` and the other `post`, return
    `before`: the issuer's metadata decided between these two when the account was connected.
    """
    declared = provider.client_auth
    is_chosen = provider.discovers and {declared, before} == {"basic", "post"}
    return before if is_chosen and before is not None else declared


def discover(provider: Provider) -> Talk[Metadata]:
    """Fetch the issuer's metadata and return it. Raises Failed if it is missing or not valid."""
    return read_metadata((yield from fetch_metadata(provider)), provider)


def fetch_metadata(provider: Provider) -> Talk[httpx.Response]:
    """Fetch the metadata from its OpenID Connect address, and return the response.

    If that address returns a client error, try the address of RFC 8414, 3.1.

    Raises:
        Failed: The issuer did not answer.
    """
    assert provider.issuer is not None
    issuer = issuer_of_tenant(provider.issuer, SHARED_TENANT)
    url = issuer.rstrip("/") + "/.well-known/openid-configuration"
    reply = yield from ask(get(url, provider=provider), provider)
    if not reply.is_client_error:
        return reply
    parts = urlsplit(issuer)
    path = "/.well-known/oauth-authorization-server" + parts.path.rstrip("/")
    other = f"{parts.scheme}://{parts.netloc}{path}"
    found = yield from ask(get(other, provider=provider), provider)
    return reply if found.is_client_error else found


def read_metadata(reply: httpx.Response, provider: Provider) -> Metadata:
    """Return the metadata in a reply.

    Raises:
        Failed: The metadata is another issuer's, or a required address is missing or not safe.
    """
    says = object_in(reply)
    if reply.status_code != 200 or says is None:
        how = f"HTTP {reply.status_code}" if reply.status_code != 200 else "no JSON"
        why = f"{provider.label} does not publish its endpoints ({how})."
        raise Failed(why) if is_temporary_reply(reply) else MetadataRefused(why, why=why)
    if says.get("issuer") != provider.issuer:
        raise MetadataRefused(
            f"{provider.label} published an issuer that differs from the configured one.",
            why=f"published the issuer {shown(says.get('issuer'))}, and the configured one is "
            f"'{provider.issuer}'",
        )
    authorize = _endpoint(says, "authorization_endpoint", provider)
    token = _endpoint(says, "token_endpoint", provider)
    if authorize is None or token is None:
        raise MetadataRefused(
            f"{provider.label} does not publish the endpoints for connecting.",
            why="the metadata has no authorization_endpoint or no token_endpoint",
        )
    client_auths = _names(says, "token_endpoint_auth_methods_supported")
    return Metadata(
        authorize=authorize,
        token=token,
        jwks=_endpoint(says, "jwks_uri", provider),
        userinfo=_endpoint(says, "userinfo_endpoint", provider),
        introspect=_endpoint(says, "introspection_endpoint", provider),
        revoke=_if_safe(says.get("revocation_endpoint"), provider),
        device=_if_safe(says.get("device_authorization_endpoint"), provider),
        end_session=_if_safe(says.get("end_session_endpoint"), provider),
        ends_sessions=says.get("backchannel_logout_supported") is True,
        par=_endpoint(says, "pushed_authorization_request_endpoint", provider),
        requires_par=says.get("require_pushed_authorization_requests") is True,
        sends_issuer=says.get("authorization_response_iss_parameter_supported") is True,
        client_auths=client_auths,
        revoke_auths=_names(says, "revocation_endpoint_auth_methods_supported") or client_auths,
        introspect_auths=_names(says, "introspection_endpoint_auth_methods_supported")
        or client_auths,
        assertion_algorithms=_names(says, "token_endpoint_auth_signing_alg_values_supported"),
        id_token_algorithms=_names(says, "id_token_signing_alg_values_supported"),
        dpop_algorithms=_names(says, "dpop_signing_alg_values_supported"),
        subject_types=_names(says, "subject_types_supported"),
    )


def shown(text: object) -> str:
    """Return an issuer's own text in quotes for a log or a terminal, cut and on one line."""
    return ascii(text[:SHOWN_AT_MOST]) if isinstance(text, str) else "none"


def _names(says: Mapping[str, Any], key: str) -> tuple[str, ...]:
    names = says.get(key)
    found = [one for one in (names if is_list(names) else ()) if isinstance(one, str)]
    return tuple(one for one in found[:_NAMES_AT_MOST] if one.isascii() and len(one) <= 64)


def _endpoint(says: Mapping[str, Any], key: str, provider: Provider) -> str | None:
    if says.get(key) is None:
        return None
    address = _if_safe(says[key], provider)
    if address is None:
        raise MetadataRefused(
            f"{provider.label} published an address that is not safe to open.",
            why=f"published an {key} that is not https: {shown(says[key])}",
        )
    return address


def _if_safe(address: Any, provider: Provider) -> str | None:
    try:
        origin = origin_of(address) if isinstance(address, str) else ""
    except InvalidQuestion:
        return None
    # Only an issuer on this machine (an http address) may publish http addresses. `origin_of`
    # accepts http only for this machine.
    is_local = (provider.issuer or "").startswith("http://")
    if not origin or "#" in address or (origin.startswith("http://") and not is_local):
        return None
    return str(address)
