"""The demo's client and browser on a machine that cannot distinguish its users.

Risks: the key goes to another program on the server's port. So that program first has to prove that
it uses this user's own store.
"""

import os
from urllib.parse import urlsplit

from flows.crypto.tokens import Tokens
from flows.errors import StoreUnavailable, Unreadable
from flows.origin import is_loopback
from webapp.command import CommandRefused, opened_store, settings_for
from webapp.connecting import utc_now
from webapp.http.port import is_ours
from webapp.identity.local_peer import can_tell_users
from webapp.identity.pairing import address_of, key_of
from webapp.records.owners import open_owners


async def pairing_of(url: str) -> tuple[str, str] | None:
    """Return the client's key and the address that pairs a browser, or None if not needed."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    if can_tell_users() or not is_loopback(host):
        return None
    try:
        settings = settings_for({**os.environ, "ELICIT_URL": url}, host=host, port=port)
        async with opened_store(settings) as store:
            owners = await open_owners(store=store, ring=settings.ring)
    except (CommandRefused, Unreadable, StoreUnavailable):
        return None  # another user's server, which identifies callers by itself
    if settings.identity.issuer is not None:
        return None
    if not await is_ours(host, port, url=settings.url, pepper=owners.pepper):
        return None
    tokens = Tokens(settings.ring, origin=settings.url)
    return key_of(settings.ring), address_of(tokens, url=settings.url, now=utc_now())
