"""The message of a server that is ready: its address, and how the server identifies users."""

from flows.crypto.tokens import Tokens
from webapp.connecting import utc_now
from webapp.identity.local_peer import can_tell_users
from webapp.identity.sessions import address_of, key_of
from webapp.settings.settings import Settings
from webapp.stores import without_password

_FLEETING = "   (only for trying: its data is lost when the server stops)"


def announcement(settings: Settings, name: str, *, sandbox_url: str | None = None) -> list[str]:
    fleeting = _FLEETING if settings.store == "memory:" else ""
    lines = [
        f"{name} is served.",
        f"  address  {settings.url}",
        f"  MCP      {settings.url}/mcp",
        f"  store    {without_password(settings.store)}{fleeting}",
    ]
    if sandbox_url is not None:
        lines.append(f"  sandbox  {sandbox_url}")
    elif has_no_provider(settings):
        lines.append(
            "  without  accounts and payments: --sandbox (ELICIT_SANDBOX=1) simulates them"
        )
    if not settings.is_local and not settings.identity.can_ask_people:
        lines.append("  nobody   can be asked: set ELICIT_ISSUER, ELICIT_BIND or ELICIT_ANONYMOUS")
    if settings.is_local and settings.identity.issuer is None:
        if not can_tell_users():
            lines += pairing_of(settings)
        elif settings.identity.pairs_for_yes:
            lines += pairing_of(settings)[:1]  # the system identifies a client's user
    return [*lines, "  stop     Ctrl+C"]


def has_no_provider(settings: Settings) -> bool:
    """Return True if a sandbox is useful: no provider of accounts or payments is configured."""
    return settings.is_local and not (settings.credentials or settings.sellers)


def pairing_of(settings: Settings) -> list[str]:
    """Return the lines about pairing a browser and a client."""
    address = address_of(
        Tokens(settings.ring, origin=settings.url), url=settings.url, now=utc_now()
    )
    return [
        f"  pair     {address}   (open it in your browser)",
        f"  key      {key_of(settings.ring)}   (your MCP client sends it as a bearer token)",
    ]
