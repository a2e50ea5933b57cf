"""What an issuer says of its own places (RFC 8414), and how it wants to be told who asks."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flows.elicitation.flow import Talk
from flows.errors import InvalidQuestion
from flows.oauth.provider import Provider
from flows.oauth.requests import ask, get
from flows.oauth.responses import Metadata, read_metadata
from flows.oauth.token_errors import members_of
from flows.origin import origin_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    metadata: Metadata
    revoke: str | None
    device: str | None

    def client_auth(self, ours: str) -> str:
        """The declared way, unless the issuer takes only the other one."""
        theirs, other = self.metadata.client_auths, "post" if ours == "basic" else "basic"
        is_other = f"client_secret_{ours}" not in theirs and f"client_secret_{other}" in theirs
        return other if is_other else ours


def discover(provider: Provider) -> Talk[Found]:
    """Ask the issuer itself. Raises Failed unless it answers in its own name, with safe places."""
    assert provider.issuer is not None
    place = provider.issuer.rstrip("/") + "/.well-known/openid-configuration"
    reply = yield from ask(get(place, provider=provider), provider)
    metadata = read_metadata(reply, provider)
    says = members_of(reply, provider)
    return Found(
        metadata=metadata,
        revoke=_place(says, "revocation_endpoint", provider),
        device=_place(says, "device_authorization_endpoint", provider),
    )


def _place(says: Mapping[str, Any], key: str, provider: Provider) -> str | None:
    """An address that is not safe to go to is none."""
    address = says.get(key)
    if not isinstance(address, str):
        return None
    try:
        origin = origin_of(address)
    except InvalidQuestion:
        return None
    # An issuer out there has no business on this machine.
    is_local = (provider.issuer or "").startswith("http://")
    is_unsafe = "#" in address or (origin.startswith("http://") and not is_local)
    return None if is_unsafe else address
