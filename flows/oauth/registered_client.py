"""This server's registration at an issuer or provider, and the settings that its operator changes.

Risks: an issuer's own text fills the operator's terminal or repeats a secret there, so the text is
cut and quoted, and omitted if it contains the start of the secret.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from flows.elicitation.flow import SetupFinding
from flows.oauth.discovery import METHODS, MetadataRefused, client_auth_of, shown
from flows.oauth.dpop import ALGORITHM
from flows.oauth.provider import Client
from flows.oauth.requests import SetupFault, Unreachable
from flows.oauth.token_errors import (
    OF_TARGET,
    UNAUTHORIZED_CLIENT,
    Refusal,
    TokenRefused,
    needs_operator,
)

# The number of characters to search for: a text that was cut may contain only the beginning of a
# secret.
_SECRET_START: Final = 8
# A refusal that says that a public client must not send a secret, as Microsoft Entra does.
_OF_PUBLIC: Final = re.compile(r"\bpublic\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredClient:
    """This server's registration, as its operator configured it.

    `claim` are the claims that identify people who sign in; None if the registration is for
    accounts. `audiences` are the names of this server in the issuer's access tokens. With
    `introspects`, the server asks the issuer about tokens that are not JWTs. `table` is the name of
    a table `[issuers.NAME]`. For a provider that exchanges people's tokens, `issuer` is this
    server's registration at the issuer of these tokens. `signed_out_uri` and `logout_uri` are this
    server's addresses for sign-out: for browsers, and for the issuer's logout tokens.
    """

    client: Client
    redirect_uri: str
    claim: tuple[str, ...] | None = None
    audiences: tuple[str, ...] = ()
    introspects: bool = False
    table: str = ""
    signed_out_uri: str = ""
    logout_uri: str = ""
    issuer: "RegisteredClient | None" = None

    def setting(self, name: str) -> str:
        """Return the name of the setting for `issuer`, `client_id` or another field."""
        provider = self.client.provider
        if self.table and name in ("client_id", "client_secret"):
            return f"ELICIT_ISSUER_{self.table.upper()}_{name.upper()}"
        if self.table:
            return f"{name} in [issuers.{self.table}] of elicit.toml"
        if self.claim is not None:
            return "ELICIT_ISSUER" if name == "issuer" else f"ELICIT_ISSUER_{name.upper()}"
        if name in ("client_id", "client_secret"):
            return f"ELICIT_{provider.name.upper()}_{name.upper()}"
        return f"{name} in [providers.{provider.name}] of elicit.toml"

    def set_to(self, name: str, value: str) -> str:
        """Return the instruction to set a field to a value."""
        if self.claim is not None and not self.table:
            return f"set {self.setting(name)}={value}"
        written = "true" if value in ("true", "1") else f'"{value}"'
        place = f"issuers.{self.table}" if self.table else f"providers.{self.client.provider.name}"
        return f"write {name} = {written} in [{place}] of elicit.toml"


def wrong(says: str, fix: str) -> SetupFinding:
    return SetupFinding(says=says, fix=fix)


def note(says: str, fix: str) -> SetupFinding:
    return SetupFinding(says=says, fix=fix, is_wrong=False)


def fix_of(error: Exception, registration: RegisteredClient) -> str | None:
    """Return how the operator corrects the fault, or None if a retry can help."""
    if not needs_operator(error):
        return None
    if isinstance(error, MetadataRefused):
        return issuer_fix(registration)
    if isinstance(error, TokenRefused):
        fix = refusal_fix(error.refusal, registration)
        can_be_secret = error.refusal.error == UNAUTHORIZED_CLIENT
        is_general = can_be_secret or fix == _credentials_fix(registration)
        return f"{fix} (elicit doctor tries other ways to send the secret)" if is_general else fix
    return error.fix if isinstance(error, SetupFault | Unreachable) else None


def refusal_fix(refusal: Refusal, registration: RegisteredClient) -> str:
    """Return how the operator corrects a refusal that no retry changes."""
    provider, setting = registration.client.provider, registration.setting
    if refusal.wants_proof and refusal.means == "client":
        if provider.dpop:
            return f"let {provider.label} accept DPoP proofs signed with {ALGORITHM}"
        return registration.set_to("dpop", "1" if registration.claim is not None else "true")
    if refusal.error in OF_TARGET:
        return target_fix(registration)
    if refusal.is_of_request:
        return f"allow code, PKCE and the scopes of this client at {provider.label}"
    if refusal.means == "redirect":
        return redirect_fix(registration)
    if refusal.means == "client" or refusal.is_unauthorized:
        if provider.client_auth != "none" and _OF_PUBLIC.search(refusal.description or ""):
            return as_public(registration)
        found = method_finding(registration, refusal.methods)
        return (found and found.fix) or _credentials_fix(registration)
    return f"correct {setting('issuer' if provider.discovers else 'token')}, or the client id"


def _credentials_fix(registration: RegisteredClient) -> str:
    setting, fix = registration.setting, f"correct {registration.setting('client_id')}"
    if registration.client.provider.client_auth != "none":
        return f"{fix} and {setting('client_secret')}"
    return f"{fix}; or, if the client has a secret there, change {setting('client_auth')}"


def method_finding(registration: RegisteredClient, methods: Sequence[str]) -> SetupFinding | None:
    """Return the finding if the issuer does not accept this server's client authentication.

    Return None if it does, or if its metadata names no methods (`methods` is empty).
    """
    provider, setting = registration.client.provider, registration.setting
    method = client_auth_of(provider.client_auth, methods)
    accepted_here = [METHODS[one] for one in methods if one in METHODS]
    if not methods or {"basic_raw": "basic", "both": "basic"}.get(method, method) in accepted_here:
        return None
    accepts = f"{provider.label} accepts only {', '.join(methods[:6])} at its token endpoint"
    fix = "this server supports none of these methods: allow another one for this client there"
    if accepted_here:
        best = min(accepted_here, key="none".__eq__)  # `none` only if nothing else is accepted
        fix = registration.set_to("client_auth", best)
        if best.endswith("_jwt"):
            key = "the private key" if best == "private_key_jwt" else "the secret"
            fix += f", and {setting('client_secret')} to {key}"
        elif best == "none":
            fix = as_public(registration)
        elif method == "none":
            fix += f", and {setting('client_secret')} to the secret of the client"
    return wrong(f"{accepts}, and this server uses {method}", fix)


def as_public(registration: RegisteredClient) -> str:
    """Return how to use a client that has no secret."""
    unset = f"unset {registration.setting('client_secret')}"
    return f"{registration.set_to('client_auth', 'none')}, and {unset}"


def target_fix(registration: RegisteredClient) -> str:
    """Return how to name the API that the tokens are for (RFC 8707)."""
    label, setting = registration.client.provider.label, registration.setting("resource")
    if registration.claim is not None:
        return f"let {label} issue this client tokens that name no API (resource)"
    if registration.client.provider.resource is None:
        return f"set {setting} to the address of the API, as {label} names it"
    return f"correct {setting}: it must be the address of the API, as {label} names it"


def issuer_fix(registration: RegisteredClient) -> str:
    return (
        f"{registration.setting('issuer')} must equal the issuer in its "
        "/.well-known/openid-configuration (or /.well-known/oauth-authorization-server), letter by "
        "letter"
    )


def redirect_fix(registration: RegisteredClient) -> str:
    return (
        f"register exactly this redirect URI for the client {registration.client.client_id} there, "
        f"or set {registration.setting('client_id')} to the client that has it "
        f"({registration.redirect_uri})"
    )


def described(registration: RegisteredClient, refusal: Refusal) -> str:
    """Return the provider's own text in brackets, or "" if it repeats the client secret."""
    text, secret = refusal.description or "", registration.client.client_secret
    is_safe = text and not (secret and secret[:_SECRET_START] in text)
    return f" ({shown(text)})" if is_safe else ""
