"""Failures at token endpoints: logged, counted, and stored if the operator has to correct them.

Risks: the operator does not see why accounts cannot be connected, or people are sent to a provider
again and again although only the operator can correct the mistake. So each failure is logged. A
refusal of this server's registration is stored too. The stored refusal is valid for ten minutes, or
until the client id or secret changes. During that time, nobody is sent to the provider.

Another risk: one person blocks all others. A token endpoint refuses the client id or secret only
because of the operator's settings, so that refusal applies to everyone. A person can cause a
refused redirect address with a foreign code, and can make up errors in a callback, so both kinds of
errors apply to that person alone. `unauthorized_client` means that the client lacks a permission,
but providers also send this error for an account that has ended. The error counts as a refusal of
the client once the accounts of two people get it within a day and no request succeeded in between.
"""

import dataclasses
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import Final, Literal

from msgspec.structs import replace

from flows.errors import ElicitError
from flows.oauth.provider import Client
from flows.oauth.registered_client import RegisteredClient, fix_of
from flows.oauth.token_errors import (
    UNAUTHORIZED_CLIENT,
    Refusal,
    TokenRefused,
    is_client_or_redirect_refused,
    refused,
)
from webapp.elicitations.service import Elicitations
from webapp.http.client import OTHER
from webapp.logs.masking import MASK, masked_in_short
from webapp.oauth.clients import place_of
from webapp.records.ids import owner_of
from webapp.records.owners import SERVICE
from webapp.records.values import RefusedRegistration

STANDS: Final = timedelta(minutes=10)
SUSPECTED: Final = timedelta(days=1)
FAILURE_RETENTION: Final = timedelta(days=30)
DESCRIPTION_AT_MOST: Final = 200
# Errors that forbid only refreshing: the client may still exchange codes, so people can go on
# connecting accounts.
_NO_REFRESH: Final = frozenset({"unsupported_grant_type", UNAUTHORIZED_CLIENT})
# Parts of a provider's text to mask: e-mail addresses, query parameters, and possible tokens.
_NO_WORD: Final = re.compile(r"\S*(?:[@=&%]|\?\S)\S*|[\w.~+/-]{24,}")
_log = logging.getLogger(__name__)
Step = Literal["push", "exchange", "refresh", "callback"]
_EVENTS: Final[Mapping[Step, str]] = {
    "push": "request.not_pushed",
    "exchange": "exchange.failed",
    "refresh": "account.not_renewed",
    "callback": "provider.refused",
}


class TokenFailures:
    """The failures at token endpoints; one instance for each process."""

    def __init__(self, elicitations: Elicitations) -> None:
        self._elicitations = elicitations

    async def note(
        self,
        error: Exception,
        *,
        step: Step,
        id: str,
        owner: str,
        client: Client | None,
        hidden: Collection[str | None] = (),
    ) -> Exception:
        """Log and count the failure of a question or account; mask `hidden` in the log.

        Return the error. If this failure proves that the provider refuses the client, return a
        TokenRefused that says so.
        """
        refusal = error.refusal if isinstance(error, TokenRefused) else None
        about: dict[str, object] = {"id": id}
        if client is not None:
            about["provider"] = client.provider.name
        if refusal is not None:
            secret = None if client is None else client.client_secret
            words = {word for word in (*hidden, secret) if word}
            about |= _log_facts(refusal, step=step, hidden=words)
        elif isinstance(error, ElicitError):
            about["why"] = getattr(error, "why", str(error))
        is_renewed = step == "refresh" and is_client_or_redirect_refused(error)
        if client is not None and (is_renewed or step in ("push", "exchange")):
            address = f"ELICIT_URL/callback/{client.provider.name}"
            registered = RegisteredClient(client=client, redirect_uri=address)
            fix = fix_of(error, registered)
            about |= {} if fix is None else {"fix": fix}
        is_known = isinstance(error, ElicitError)
        _log.warning(_EVENTS[step], extra=about, exc_info=None if is_known else error)
        is_operators = client is not None and client.is_operators
        self._elicitations.observer.account_failed(
            client.provider.name if client is not None and is_operators else OTHER,
            step=step,
            reason="other" if refusal is None or refusal.is_page else refusal.means,
        )
        if client is None or refusal is None:
            return error
        if refusal.means in ("client", "redirect"):
            await self._remember(client, refusal, step=step, owner=owner)
        elif (
            (refusal.means, refusal.error) == ("unsure", UNAUTHORIZED_CLIENT)
            and step != "callback"
            and await self._remember(client, refusal, step=step, owner=owner)
        ):
            sure = dataclasses.replace(refusal, means="client")
            return refused(sure, client.provider, otherwise="")
        return error

    async def check(self, client: Client, *, owner: str, refreshes: bool = False) -> None:
        """Raise TokenRefused if a stored refusal forbids connecting or refreshing accounts."""
        now = self._elicitations.clock()
        for id in self._ids(client, owner=owner, refreshes=refreshes):
            found = await self._read(id)
            # Ignore a row that ends later than now + STANDS: the clock was set back after the row
            # was written.
            if found is not None and found.is_refused and now < found.until <= now + STANDS:
                refusal = Refusal(
                    status=found.http_status,
                    error=found.error,
                    means="redirect" if found.fault == "redirect" else "client",
                )
                raise refused(refusal, client.provider, otherwise="")

    async def clear(self, client: Client, *, owner: str, refreshes: bool = False) -> None:
        """End earlier refusals, because the provider has accepted this server's registration."""
        for id in self._ids(client, owner=owner, refreshes=refreshes):
            await self._elicitations.write_rebuilt(partial(self._accepted, id))

    async def standing(self, clients: Collection[Client]) -> Sequence[RefusedRegistration]:
        """Return the refusals of these registrations that no later success has ended."""
        known = {self._tag(client) for client in clients}
        rows = await self._elicitations.all(
            RefusedRegistration, status="refused", skips_unreadable=True
        )
        return [row for row in rows if row.registration in known]

    async def _remember(self, client: Client, refusal: Refusal, *, step: Step, owner: str) -> bool:
        """Store the refusal.

        Return False as long as the refusal may be about this owner's account alone.
        """
        fault = "redirect" if refusal.means == "redirect" else "client"
        if step == "refresh" and refusal.error in _NO_REFRESH:
            fault = "refresh"
        for_all, for_owner = self._ids(client, owner=owner, refreshes=fault == "refresh")
        id = for_owner if fault != "client" or step == "callback" else for_all
        now = self._elicitations.clock()
        fresh = RefusedRegistration(
            id=id,
            owner=_owner_in(id),
            provider=client.provider.name,
            registration=self._tag(client),
            fault=fault,
            error=refusal.error,
            http_status=refusal.status,
            last_at=now,
            until=now + STANDS,
            erase_at=now + FAILURE_RETENTION,
        )

        is_sure = refusal.means != "unsure"
        by = self._elicitations.owners.pepper.tag("refused", owner)

        async def noted() -> Sequence[RefusedRegistration]:
            nonlocal is_sure
            before = await self._read(id)
            if refusal.means == "unsure":
                is_sure = (
                    before is not None
                    and before.by not in (None, by)
                    and timedelta() <= now - before.last_at < SUSPECTED
                )
            row = replace(fresh, by=by, status="refused" if is_sure else "suspected")
            if before is None:
                return [row]
            return [replace(row, count=before.count + 1, version=before.version)]

        await self._elicitations.write_rebuilt(noted)
        if not is_sure:
            return False
        about = {"provider": client.provider.name, "fault": fault, "error": refusal.error}
        _log.error("registration.refused", extra=about)
        return True

    async def _accepted(self, id: str) -> Sequence[RefusedRegistration]:
        found = await self._read(id)
        if found is None or (found.by is None and not found.is_refused):
            return []
        status = "accepted" if found.is_refused else found.status
        return [replace(found, status=status, by=None)]

    async def _read(self, id: str) -> RefusedRegistration | None:
        return await self._elicitations.read(RefusedRegistration, owner=_owner_in(id), id=id)

    def _tag(self, client: Client) -> str:
        """Return a hash of the client id, the secret, and the provider's name and address."""
        names = (client.provider.name, place_of(client), client.client_id, client.client_secret)
        return self._elicitations.owners.pepper.tag("registration", *names, size=18)

    def _ids(self, client: Client, *, owner: str, refreshes: bool) -> tuple[str, str]:
        """Return the ids of the rows that apply: one for everyone, and one for this owner.

        For a refresh, both rows are for everyone: one about the client, and one about the client's
        permission to refresh.
        """
        tag = self._tag(client)
        return SERVICE + tag, (f"{SERVICE}{tag}.refresh" if refreshes else owner + tag)


def _owner_in(id: str) -> str:
    return SERVICE if id.startswith(SERVICE) else owner_of(id)


def _log_facts(refusal: Refusal, *, step: Step, hidden: Collection[str]) -> dict[str, object]:
    """Return a refusal's facts for the log.

    The text of a callback is left out, because anyone can make it up.
    """
    facts: dict[str, object] = {"means": refusal.means}
    if refusal.error is not None:
        facts["error"] = refusal.error
    if step != "callback":
        facts["http_status"] = refusal.status
        if refusal.description is not None:
            text = masked_in_short(refusal.description, hidden, at_most=DESCRIPTION_AT_MOST)
            facts["description"] = _NO_WORD.sub(MASK, text)
    return facts
