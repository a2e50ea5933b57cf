"""Introspection: whose an access token is that only its issuer can read (RFC 7662).

What could go wrong: anybody may send what looks like one, and each must not become a request to
the issuer. So an answer counts for a minute, for a token that is none as well, the same token is
asked about once at a time, and unknown ones of one address come at a rate. A token that was
revoked may be let in for that minute.
"""

import asyncio
import hashlib
from collections import OrderedDict
from datetime import timedelta
from typing import TypeAlias

from flows.access_token import ASKED_AGAIN, BadBearer, Resource, Verified, introspected
from flows.errors import Failed
from flows.oauth_refusals import members_of
from flows.oauth_requests import auth_of, post
from flows.provider import Client
from webapp.deadline import ticks_of
from webapp.elicitations import Clock
from webapp.issuer import Issuer
from webapp.rates import Rates

KNOWN_AT_MOST = 10_000
AT_ONCE, BETWEEN = 30, timedelta(seconds=1)
_Said: TypeAlias = Verified | BadBearer


class Introspection:
    def __init__(self, *, issuer: Issuer, client: Client, resource: Resource, clock: Clock) -> None:
        self._issuer = issuer
        self._client = client
        self._resource = resource
        self._clock = clock
        self._ticks = ticks_of(clock)
        self._rates = Rates(burst=AT_ONCE, every=BETWEEN, clock=clock)
        self._known: OrderedDict[bytes, tuple[float, _Said]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[_Said]] = {}

    async def verified(self, token: str, *, sender: str) -> Verified:
        """Raises BadBearer, and Failed where the issuer cannot be asked about it now."""
        key = hashlib.sha256(token.encode()).digest()
        until, said = self._known.get(key, (0.0, None))
        if said is None or self._ticks() >= until:
            said = await asyncio.shield(self._asked(key, token, sender))
        if isinstance(said, BadBearer):
            raise said
        if said.expires_at <= self._clock():
            raise BadBearer("time", expected="exp after now")
        return said

    def _asked(self, key: bytes, token: str, sender: str) -> "asyncio.Task[_Said]":
        if key not in self._asking:
            if self._rates.allow(sender):
                raise Failed("There are too many access tokens here that nobody knows.")
            task = self._asking[key] = asyncio.create_task(self._ask(key, token))
            task.add_done_callback(lambda task: self._answered(key, task))
        return self._asking[key]

    def _answered(self, key: bytes, task: "asyncio.Task[_Said]") -> None:
        del self._asking[key]
        if not task.cancelled():
            task.exception()  # whoever went away meanwhile does not look

    async def _ask(self, key: bytes, token: str) -> _Said:
        metadata, label = await self._issuer.metadata(), self._client.provider.label
        if metadata.introspect is None:
            raise BadBearer("opaque", expected="a JWT, as the issuer has no introspection")
        reply = await self._issuer.ask(
            post(
                self._client,
                place=metadata.introspect,
                values={"token": token, "token_type_hint": "access_token"},
                client_auth=auth_of(metadata.client_auths),
            )
        )
        if reply.status_code != 200:
            raise Failed(f"{label} does not say whose a token is (HTTP {reply.status_code}).")
        says = members_of(reply, self._client.provider)
        said: _Said
        try:
            said = introspected(says, resource=self._resource, now=self._clock())
        except BadBearer as refusal:
            said = refusal
        self._known[key] = (self._ticks() + ASKED_AGAIN.total_seconds(), said)
        if len(self._known) > KNOWN_AT_MOST:
            self._known.popitem(last=False)
        return said
