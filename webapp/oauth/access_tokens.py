"""Access tokens of connected accounts: refreshed by one process at a time, and revoked.

Risks: two processes refresh at once, and a provider that rotates tokens treats the second request
as an attack. So a process claims the account's row before it asks the provider, and stores the new
pair of tokens before any tool gets them. One gap remains: a process that dies between the reply and
the write loses the new pair. Its claim then expires, the next process sends the old refresh token,
the provider refuses that token, and the person has to connect the account once more.

Two more risks: a valid account is ended because its provider is out of order, or an account that
has ended is refreshed forever. A refusal ends an account if the standard or the provider's
declaration says so. Any other refusal ends it only with a proof. The proof is that the provider's
API refuses the access token too, or that the provider refuses a second refresh two minutes later.
The second refresh is an hour later if the first reply was a page or a redirect instead of an error.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from weakref import WeakValueDictionary

from msgspec.structs import replace

from flows.elicitation.flow import Talk
from flows.elicitation.tool_call import CallingClient
from flows.errors import ElicitError, Failed
from flows.oauth.connection import Claim, Connection, disconnect, lapse
from flows.oauth.discovery import discover
from flows.oauth.provider import Client, Provider
from flows.oauth.refresh import (
    OwnerUnknown,
    RefreshTokenGone,
    Renewed,
    needs_refresh,
    refresh,
    refreshed,
)
from flows.oauth.requests import ApiAccess, ask_as, asked_who, get
from flows.oauth.revocation import revoke
from flows.oauth.token_errors import TokenRefused, is_client_or_redirect_refused
from webapp.deadline import Deadline
from webapp.elicitations.service import Elicitations
from webapp.http.client import Outbound
from webapp.oauth.connections import Connections
from webapp.oauth.token_failures import TokenFailures
from webapp.records.values import Value
from webapp.stores import Conflict

CLAIM = timedelta(seconds=60)
WAIT_AT_MOST = timedelta(seconds=90)
# How often a row that another process has claimed is polled.
LOOK_FIRST = timedelta(milliseconds=50)
LOOK_AT_MOST = timedelta(seconds=1)
BACK_OFF = timedelta(seconds=10)
REFUSED_AGAIN_AFTER = timedelta(minutes=2)
# A provider that is out of order for some minutes may reply with a page instead of a token.
PAGE_AGAIN_AFTER = timedelta(hours=1)
# If the API refuses an access token this soon after it was issued, a refresh does not help.
FRESH = timedelta(seconds=30)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnection:
    """The result of disconnecting an account, whose label stays stored for a day.

    `revoked` is True if the provider confirmed the revocation, and None if the provider has no
    revocation endpoint or if there was no account. `manage` is the provider's page where the person
    can remove the grant. `provider` is the provider's label.
    """

    revoked: bool | None
    label: str | None = None
    provider: str | None = None
    manage: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class AccessTokens:
    elicitations: Elicitations
    outbound: Outbound
    connections: Connections
    failures: TokenFailures
    # Calls of this process wait here, so that only one of them polls the store.
    _locks: WeakValueDictionary[str, asyncio.Lock] = field(
        init=False, default_factory=WeakValueDictionary[str, asyncio.Lock]
    )

    @property
    def _now(self) -> datetime:
        return self.elicitations.clock()

    async def working(self, found: Connection) -> Connection | None:
        """Return the account with a valid access token; None if it must be connected again.

        Raises Failed if the token has expired and cannot be refreshed now.
        """
        now = self._now
        if not found.is_usable(now=now):
            return None
        if not needs_refresh(found, now=now):
            return found
        return await self._renewed(found, refused=None)

    async def instead_of(
        self, owner: str, id: str, *, refused: str, tool: str, client: CallingClient
    ) -> tuple[str, str | None] | None:
        """Return a newer access token than `refused`, which the provider's API refused, or None.

        The second value is the private key that the token is bound to (DPoP), or None.

        Return None also if the account is not shared with `tool` and `client`. `client` is the MCP
        client that calls the tool.
        """
        found = await self.connections.read(owner, id)
        if found is None or not found.is_connected or not found.is_shared(tool, client):
            return None
        if found.access_token != refused:
            return found.access_token, found.dpop_key
        issued_at = found.issued_at or found.connected_at
        if abs(self._now - issued_at) < FRESH:
            return None
        try:
            renewed = await self._renewed(found, refused=refused)
        except Failed:
            return None
        if renewed is None or renewed.access_token == refused:
            return None
        is_shared = renewed.is_shared(tool, client)
        return (renewed.access_token, renewed.dpop_key) if is_shared else None

    async def invalidate(
        self, owner: str, id: str, *, refused: str, tool: str, client: CallingClient
    ) -> None:
        """Mark the access token as expired, because a tool's request with the token was refused.

        The next use renews the token. An account without a refresh token has to be connected
        again. A token that was issued a moment ago stays valid, so that a tool cannot cause one
        refresh after the other.
        """

        async def expired() -> list[Value]:
            found = await self.connections.read(owner, id)
            if found is None or not found.is_connected or not found.is_shared(tool, client):
                return []
            now, issued_at = self._now, found.issued_at or found.connected_at
            if found.access_token != refused or abs(now - issued_at) < FRESH:
                return []
            return [replace(found, expires_at=now)] if found.works(now=now) else []

        await self.elicitations.write_rebuilt(expired)

    async def refresh_again(self, found: Connection) -> None:
        """Refresh the tokens, unless they have changed since `found` was read. Only log a failure.

        An account whose grant has ended lapses.
        """
        with suppress(Failed):  # the failure is logged, and the row has the time of the next try
            await self._renewed(found, refused=found.access_token)

    async def disconnect(self, owner: str, id: str, *, by: str | None = None) -> Disconnection:
        """Revoke and erase an account's tokens. Runs to completion if cancelled.

        `by` is the requester's name in the audit.
        """
        return await self.elicitations.run_to_completion(self._disconnect(owner, id, by=by))

    async def _renewed(self, found: Connection, *, refused: str | None) -> Connection | None:
        lock = self._locks.setdefault(found.id, asyncio.Lock())
        async with lock:
            return await self.elicitations.run_to_completion(self._renew(found, refused=refused))

    async def _renew(self, found: Connection, *, refused: str | None) -> Connection | None:
        deadline = self._from_now(WAIT_AT_MOST)
        while True:
            current = await self._free(found, deadline=deadline)
            now = self._now
            if current is None or not current.is_usable(now=now):
                return None
            if not _is_due(current, refused=refused, now=now):
                return current
            client = self.connections.client(current)
            if client is None or _is_delayed(current, now=now):
                return _as_it_is(current, refused=refused, now=now)
            try:
                await self.failures.check(client, owner=current.owner, refreshes=True)
            except TokenRefused as error:
                return _as_it_is(current, refused=refused, now=now, error=error)
            claimed = await self._claimed(current)
            # If the claim expired during the write, another process may ask the provider.
            if claimed is not None and claimed.is_claimed(now=self._now):
                return await self._ask(client, claimed, refused=refused)

    async def _free(self, found: Connection, *, deadline: Deadline) -> Connection | None:
        """Wait until no other process claims the row, and return the row.

        Return None if the account was disconnected. Raises Failed after `deadline`.
        """
        pause, claim, until = LOOK_FIRST, None, deadline
        with self.elicitations.waiters.waiter(found.id) as waiter:
            while True:
                current = await self.connections.read(found.owner, found.id)
                now = self._now
                if current is None or not current.is_claimed(now=now):
                    return current
                if current.claim != claim:
                    # Measure with this process's clock: the claim's end is from another clock.
                    claim, until = current.claim, self._from_now(CLAIM)
                if until.has_ended:
                    return current
                if deadline.has_ended:
                    raise _not_now(current)
                await waiter.changes(until=min(now + pause, until.at(now)), now=now)
                pause = min(2 * pause, LOOK_AT_MOST)

    def _from_now(self, after: timedelta) -> Deadline:
        return Deadline(after, ticks=self.elicitations.ticks)

    async def _claimed(self, current: Connection) -> Connection | None:
        """Claim the row and return it; None if another process wrote the row first."""
        until = self._now + CLAIM
        claimed = replace(current, claim=Claim(by=secrets.token_urlsafe(12), until=until))
        try:
            await self.elicitations.write(claimed)
        except Conflict:
            return None
        return replace(claimed, version=claimed.version + 1)

    async def _ask(
        self, client: Client, claimed: Connection, *, refused: str | None
    ) -> Connection | None:
        """Refresh the tokens at the provider, and store the new ones. Return the account or None.

        An account without a refresh token is only checked. Raises Failed if the old access token
        cannot be used and the account may still be valid.
        """
        now = self._now
        if not claimed.is_renewable:
            await self._prove(client, claimed)
            return None
        try:
            renewed = await self.outbound.run(refresh(client, claimed, now=now), to=client)
        except RefreshTokenGone as gone:
            current = await self._lapse(claimed, reason=gone.reason, proof="the provider's word")
        except Exception as error:  # noqa: BLE001 - the edge of a task
            if isinstance(error, OwnerUnknown):
                new = error.tokens
                # A provider that receives the former refresh token again would revoke both tokens.
                await self._write_claimed(
                    claimed,
                    lambda c: replace(
                        c,
                        refresh_token=new.refresh_token,
                        refresh_expires_at=new.refresh_expires_at,
                    ),
                )
            noted = await self._note(client, claimed, error)
            current = await self._after_failure(client, claimed, noted)
            if current is None:
                return None
            return _as_it_is(current, refused=refused, now=self._now, error=noted)
        else:
            current = await self._write_claimed(claimed, lambda c: _with(c, renewed, now=now))
            await self.failures.clear(client, owner=claimed.owner, refreshes=True)
        # The account may have been connected again, or disconnected, in the meantime.
        now = self._now
        return None if current is None or not current.is_usable(now=now) else current

    async def _after_failure(
        self, client: Client, claimed: Connection, error: Exception
    ) -> Connection | None:
        """Store the result of a failed refresh, and return the changed account."""
        refusal = error.refusal if isinstance(error, TokenRefused) else None
        if claimed.is_service:  # no person could connect this account again
            return await self._write_claimed(claimed, self._later)
        # The provider refused this server's client credentials, which is not the account's fault.
        if refusal is not None and refusal.means == "client":
            return await self._write_claimed(claimed, lambda c: replace(c, claim=None))
        if refusal is None or refusal.means != "unsure":
            return await self._write_claimed(claimed, self._later)
        now, first = self._now, claimed.refused_at
        if first is None or first > now:  # the time is in the future, so the clock was set back
            first = now
        wait = PAGE_AGAIN_AFTER if refusal.is_page else REFUSED_AGAIN_AFTER
        if now - first >= wait:
            return await self._lapse(claimed, reason=refusal.error, proof="refused twice")
        # The API refuses every expired access token. So if the reply was a page and the access
        # token has expired, a refusal by the API proves nothing.
        counts = refusal.is_readable or claimed.works(now=now)
        if counts and await self._is_refused_by_api(client, claimed):
            return await self._lapse(claimed, reason=refusal.error, proof="the provider's API")
        again_at = min(first + wait, now + REFUSED_AGAIN_AFTER)
        return await self._write_claimed(
            claimed, lambda c: replace(c, claim=None, refused_at=first, retry_at=again_at)
        )

    async def _lapse(
        self, claimed: Connection, *, reason: str | None, proof: str
    ) -> Connection | None:
        now = self._now
        about = {"id": claimed.id, "provider": claimed.provider, "reason": reason, "proof": proof}
        _log.info("account.lapsed", extra=about)
        return await self._write_claimed(claimed, lambda c: lapse(c, now=now))

    async def _prove(self, client: Client, claimed: Connection) -> None:
        """End an account without a refresh token if the provider's API refuses its access token."""
        if await self._is_refused_by_api(client, claimed):
            await self._lapse(claimed, reason=None, proof="the provider's API")
        else:
            await self._write_claimed(claimed, self._later)

    async def _is_refused_by_api(self, client: Client, claimed: Connection) -> bool:
        try:
            return await self.outbound.run(_is_refused(client, claimed, now=self._now), to=client)
        except Exception as error:  # noqa: BLE001 - the edge of a task
            _log_failure(error, "account.not_proven", claimed)
            return False

    async def _note(self, client: Client, claimed: Connection, error: Exception) -> Exception:
        return await self.failures.note(
            error,
            step="refresh",
            id=claimed.id,
            owner=claimed.owner,
            client=client,
            hidden=(claimed.access_token, claimed.refresh_token),
        )

    async def _write_claimed(
        self, claimed: Connection, change: Callable[[Connection], Connection]
    ) -> Connection | None:
        """Write the change if this process still has the claim, and return the current row."""

        async def changed() -> list[Value]:
            current = await self.connections.read(claimed.owner, claimed.id)
            if current is None or current.claim != claimed.claim:
                return []
            return [change(current)]

        await self.elicitations.write_rebuilt(changed)
        return await self.connections.read(claimed.owner, claimed.id)

    def _later(self, connection: Connection) -> Connection:
        pause = BACK_OFF if connection.refused_at is None else REFUSED_AGAIN_AFTER
        return replace(connection, claim=None, retry_at=self._now + pause)

    async def _disconnect(self, owner: str, id: str, *, by: str | None) -> Disconnection:
        claimed: Connection | None = None
        while claimed is None:
            found = await self.elicitations.read(Connection, owner=owner, id=id)
            if found is None:
                return Disconnection(revoked=None)
            if found.ended_at is not None:
                return self._disconnection(found)
            deadline = self._from_now(WAIT_AT_MOST)
            current = await self._free(found, deadline=deadline)
            if current is not None:
                # From now on no tool gets the account, even if this process dies.
                claimed = await self._claimed(lapse(current, now=self._now))
        was_revoked = await self._revoked(claimed)

        async def ended() -> list[Value]:
            current = await self.connections.read(owner, id)
            if current is None or current.lapsed_at is None:
                return []  # the person has connected the account again in the meantime
            return [disconnect(current, now=self._now, was_revoked=was_revoked, by=by)]

        await self.elicitations.write_rebuilt(ended)
        about = {"id": id, "provider": claimed.provider, "revoked": was_revoked}
        _log.info("account.disconnected", extra=about)
        return self._disconnection(replace(claimed, was_revoked=was_revoked))

    async def _revoked(self, claimed: Connection) -> bool | None:
        client = self.connections.client(claimed)
        if client is None:
            return False
        try:
            kind = await self.outbound.run(_revocation_kind(client.provider), to=client)
            if kind is None:
                return None
            now = self._now
            if kind != "form" and not claimed.works(now=now) and claimed.refresh_token is not None:
                # A revocation with an expired access token may revoke nothing, and the refresh
                # token would stay valid: refresh first.
                renewed = await self.outbound.run(refresh(client, claimed, now=now), to=client)
                claimed = refreshed(claimed, renewed, now=now)
                await self._write_claimed(claimed, lambda c: refreshed(c, renewed, now=now))
            return await self.outbound.run(revoke(client, claimed, now=self._now), to=client)
        except Exception as error:  # noqa: BLE001 - the edge of a task
            _log_failure(error, "account.not_revoked", claimed)
            return False

    def _disconnection(self, connection: Connection) -> Disconnection:
        provider = self.connections.provider(connection)
        return Disconnection(
            revoked=connection.was_revoked,
            label=connection.label,
            provider=connection.provider if provider is None else provider.label,
            manage=None if provider is None else provider.manage_page,
        )


def _is_due(current: Connection, *, refused: str | None, now: datetime) -> bool:
    if refused is None:
        return needs_refresh(current, now=now)
    return current.access_token == refused


def _is_delayed(current: Connection, *, now: datetime) -> bool:
    """Return True if the last refresh failed a moment ago.

    Ignore a `retry_at` too far in the future: it was stored before the clock was set back.
    """
    return current.retry_at is not None and now < current.retry_at <= now + REFUSED_AGAIN_AFTER


def _as_it_is(
    current: Connection, *, refused: str | None, now: datetime, error: Exception | None = None
) -> Connection | None:
    """Return the account with its old access token, or None if it must be connected again.

    Raises Failed if the old token has expired or was `refused`. `error` is the reason why the token
    could not be refreshed now.
    """
    if not current.is_usable(now=now):
        return None
    if current.works(now=now) and current.access_token != refused:
        return current
    raise _not_now(current, error=error)


def _not_now(current: Connection, *, error: Exception | None = None) -> Failed:
    if isinstance(error, TokenRefused) and is_client_or_redirect_refused(error):
        return error
    why = f" {error}" if isinstance(error, Failed) else ""
    if current.is_service:
        return Failed(
            f"The server has no valid token of its own account at {current.label}.{why} Try again "
            "in a moment."
        )
    if current.refused_at is not None:
        minutes = f"{REFUSED_AGAIN_AFTER // timedelta(minutes=1)} minutes"
        return Failed(
            f"The provider refuses to renew the access token of {current.label}.{why} Call this "
            f"again in {minutes}. If the provider still refuses then, the person is asked to "
            "connect the account again."
        )
    return Failed(
        f"The server could not renew the access token of {current.label}.{why} Try again in a "
        'moment. If it fails again, the person can connect the account again under "Your accounts".'
    )


def _with(current: Connection, renewed: Renewed, *, now: datetime) -> Connection:
    return replace(refreshed(current, renewed, now=now), claim=None, retry_at=None, refused_at=None)


def _revocation_kind(provider: Provider) -> Talk[str | None]:
    """Return the kind of the provider's revocation endpoint, or None if it has none."""
    if provider.revoke is not None or not provider.discovers:
        return None if provider.revoke is None else provider.revoke.kind
    found = yield from discover(provider)
    return None if found.revoke is None else "form"


def _is_refused(client: Client, connection: Connection, *, now: datetime) -> Talk[bool]:
    """Ask the provider for the access token's person, and return True if the reply is 401."""
    provider = client.provider
    access = ApiAccess(token=connection.access_token, key=connection.dpop_key, now=now)
    if provider.person is not None:
        reply = yield from asked_who(provider, provider.person, access=access)
        return reply is not None and reply.status_code == 401
    userinfo = (yield from discover(provider)).userinfo if provider.discovers else None
    if userinfo is None:
        return False
    reply = yield from ask_as(access, get(userinfo, provider=provider), provider)
    return reply.status_code == 401


def _log_failure(error: Exception, event: str, connection: Connection) -> None:
    about = {"provider": connection.provider}
    if isinstance(error, ElicitError):
        _log.warning(event, extra={**about, "why": getattr(error, "why", str(error))})
    else:
        _log.exception(event, extra=about)
