"""Discovery of an issuer's endpoints and client authentication (RFC 8414).

Risks: the metadata is another issuer's, so its `issuer` must equal the declared one. Or an http
address leads to a service on this machine: only an issuer on this machine may name http addresses.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from flows.elicitation.flow import Talk
from flows.errors import Failed, InvalidQuestion
from flows.oauth.provider import Provider
from flows.oauth.requests import ask, get
from flows.oauth.responses import is_list, object_in
from flows.origin import origin_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Metadata:
    """The part of an issuer's metadata (RFC 8414) that the flow needs."""

    authorize: str
    token: str
    jwks: str | None
    userinfo: str | None
    introspect: str | None
    revoke: str | None
    device: str | None
    sends_issuer: bool
    client_auths: tuple[str, ...]

    def client_auth(self, ours: str) -> str:
        """Return `ours`, or the other of `basic` and `post` if the issuer accepts only that."""
        if ours not in ("basic", "post"):
            return ours
        theirs, other = self.client_auths, "post" if ours == "basic" else "basic"
        is_other = f"client_secret_{ours}" not in theirs and f"client_secret_{other}" in theirs
        return other if is_other else ours


def discover(provider: Provider) -> Talk[Metadata]:
    """Fetch the issuer's metadata and return it. Raises Failed if it is missing or not valid."""
    assert provider.issuer is not None
    url = provider.issuer.rstrip("/") + "/.well-known/openid-configuration"
    return read_metadata((yield from ask(get(url, provider=provider), provider)), provider)


def read_metadata(reply: httpx.Response, provider: Provider) -> Metadata:
    """Return the metadata in a reply.

    Raises:
        Failed: The metadata is another issuer's, or a required address is missing or not safe.
    """
    says = object_in(reply)
    if reply.status_code != 200 or says is None:
        raise Failed(f"{provider.label} does not publish its endpoints (HTTP {reply.status_code}).")
    if says.get("issuer") != provider.issuer:
        raise Failed(f"{provider.label} published an issuer that differs from the configured one.")
    authorize = _endpoint(says, "authorization_endpoint", provider)
    token = _endpoint(says, "token_endpoint", provider)
    if authorize is None or token is None:
        raise Failed(f"{provider.label} does not publish the endpoints for connecting.")
    auths = says.get("token_endpoint_auth_methods_supported")
    return Metadata(
        authorize=authorize,
        token=token,
        jwks=_endpoint(says, "jwks_uri", provider),
        userinfo=_endpoint(says, "userinfo_endpoint", provider),
        introspect=_endpoint(says, "introspection_endpoint", provider),
        revoke=_if_safe(says.get("revocation_endpoint"), provider),
        device=_if_safe(says.get("device_authorization_endpoint"), provider),
        sends_issuer=says.get("authorization_response_iss_parameter_supported") is True,
        client_auths=tuple(
            each for each in (auths if is_list(auths) else ()) if isinstance(each, str)
        ),
    )


def _endpoint(says: Mapping[str, Any], key: str, provider: Provider) -> str | None:
    if says.get(key) is None:
        return None
    address = _if_safe(says[key], provider)
    if address is None:
        raise Failed(f"{provider.label} published an address that is not safe to open.")
    return address


def _if_safe(address: Any, provider: Provider) -> str | None:
    try:
        origin = origin_of(address) if isinstance(address, str) else ""
    except InvalidQuestion:
        return None
    # Only an issuer on this machine may name http addresses; they are on this machine too.
    is_local = (provider.issuer or "").startswith("http://")
    if not origin or "#" in address or (origin.startswith("http://") and not is_local):
        return None
    return str(address)
