"""This server's registration at an issuer or provider, and the settings that its operator changes.

Risks: an issuer's own text fills the operator's terminal or repeats a secret there, so the text is
cut and quoted, and omitted if it contains the start of the secret.
"""

from dataclasses import dataclass
from typing import Final

from flows.elicitation.flow import SetupFinding
from flows.oauth.discovery import shown
from flows.oauth.provider import Client
from flows.oauth.token_errors import Refusal

# characters; a text that was cut may contain only the beginning of a secret
_SECRET_START: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisteredClient:
    """This server's registration, as its operator configured it.

    `claim` are the claims that identify people who sign in; None if the registration is for
    accounts. `audiences` are the names of this server in the issuer's access tokens. With
    `introspects`, the server asks the issuer about tokens that are not JWTs. `table` is the name of
    a table `[issuers.NAME]`. `issuer` is the registration at the issuer whose people's tokens the
    provider exchanges.
    """

    client: Client
    redirect_uri: str
    claim: tuple[str, ...] | None = None
    audiences: tuple[str, ...] = ()
    introspects: bool = False
    table: str = ""
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


def described(registration: RegisteredClient, refusal: Refusal) -> str:
    """Return the provider's own text in brackets, or "" if it repeats the client secret."""
    text, secret = refusal.description or "", registration.client.client_secret
    is_safe = text and not (secret and secret[:_SECRET_START] in text)
    return f" ({shown(text)})" if is_safe else ""
