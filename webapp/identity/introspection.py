"""Introspection: requests that ask the issuer about an opaque access token (RFC 7662).

Risks: invalid tokens, which anyone can send, each cause a request to the issuer. Each answer of the
issuer is therefore cached for a minute, even if the token is invalid, and there is one request at a
time for the same token. A token that was revoked may be accepted for that minute.

A sender of invalid tokens must not lock out other users of the same address, which a whole office
or a hosted client may share. Only refusals count for an address. After too many of them, the tokens
of that address are checked one after another. A token that was valid within the last hour is always
checked. All other checks share a limited number of concurrent requests.

The cache stores an answer as a value and not as an exception. An exception that is raised several
times collects the frames of each time, and so would hold the data of those requests in memory.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeAlias, TypeVar

from flows.errors import Failed
from flows.oauth.access_token import ASKED_AGAIN, BadBearer, Resource, Verified, introspected
from flows.oauth.discovery import client_auth_of
from flows.oauth.provider import Client
from flows.oauth.requests import post
from flows.oauth.responses import members_of
from webapp.deadline import Clock, ticks_of
from webapp.http.rate_limit import Rates
from webapp.identity.issuer import Issuer

KNOWN_AT_MOST = 10_000
RENEWED_FOR = timedelta(hours=1)
ASKED_AT_ONCE = 8
# refusals for one address, after which its tokens wait in a queue
REFUSED_AT_ONCE, BETWEEN_REFUSALS = 30, timedelta(seconds=1)
LINE_AT_MOST = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refused:
    """The content of a BadBearer."""

    reason: str
    expected: object
    received: str | None

    def error(self) -> BadBearer:
        error = BadBearer(self.reason, expected=self.expected)
        error.received = self.received
        return error


@dataclass(slots=True)
class _Queue:
    """The queue of an address that has sent too many invalid tokens."""

    length: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)


_Content: TypeAlias = Verified | _Refused
_Answer = TypeVar("_Answer", Verified, _Refused)


class Introspection:
    def __init__(self, *, issuer: Issuer, client: Client, resource: Resource, clock: Clock) -> None:
        self._issuer = issuer
        self._client = client
        self._resource = resource
        self._clock = clock
        self._ticks = ticks_of(clock)
        self._refusals = Rates(burst=REFUSED_AT_ONCE, every=BETWEEN_REFUSALS, clock=clock)
        self._turns = asyncio.Semaphore(ASKED_AT_ONCE)
        self._queues: dict[str, _Queue] = {}  # by address
        # Answers with their time, the oldest first. Refusals are stored apart, so that they cannot
        # displace valid tokens.
        self._good: OrderedDict[bytes, tuple[float, Verified]] = OrderedDict()
        self._refused: OrderedDict[bytes, tuple[float, _Refused]] = OrderedDict()
        self._asking: dict[bytes, asyncio.Task[_Content]] = {}

    def __len__(self) -> int:
        return len(self._good) + len(self._refused)

    async def verified(self, token: str, *, sender: str) -> Verified:
        """Return the verified token.

        Raises BadBearer, or Failed if the issuer cannot be asked now.
        """
        key = hashlib.sha256(token.encode()).digest()
        self._forget()
        answer = self._cached(key)
        if answer is None:
            answer = await asyncio.shield(self._request_for(key, token, sender))
        if isinstance(answer, _Refused):
            raise answer.error()
        if answer.expires_at <= self._clock():
            raise BadBearer("time", expected="exp after now")
        return answer

    def _cached(self, key: bytes) -> _Content | None:
        """Return the cached answer, unless it has expired."""
        at, answer = self._good.get(key) or self._refused.get(key) or (0.0, None)
        return answer if at > self._ticks() - ASKED_AGAIN.total_seconds() else None

    def _forget(self) -> None:
        now = self._ticks()
        _drop(self._good, since=now - RENEWED_FOR.total_seconds())
        _drop(self._refused, since=now - ASKED_AGAIN.total_seconds())

    def _request_for(self, key: bytes, token: str, sender: str) -> "asyncio.Task[_Content]":
        if key not in self._asking:
            task = self._asking[key] = asyncio.create_task(self._in_turn(key, token, sender))
            task.add_done_callback(lambda task: self._end_request(key, task))
        return self._asking[key]

    def _end_request(self, key: bytes, task: "asyncio.Task[_Content]") -> None:
        del self._asking[key]
        if not task.cancelled():
            # read the exception, so that asyncio logs no error if every caller is gone
            task.exception()

    async def _in_turn(self, key: bytes, token: str, sender: str) -> _Content:
        if key in self._good:
            return await self._ask(key, token, sender)
        async with self._turns:
            if not self._refusals.wait(sender):
                return await self._ask(key, token, sender)
        async with self._queued(sender), self._turns:
            return await self._ask(key, token, sender)

    @asynccontextmanager
    async def _queued(self, sender: str) -> AsyncGenerator[None]:
        queue = self._queues.setdefault(sender, _Queue())
        if queue.length == LINE_AT_MOST:
            raise Failed(
                "Too many unknown access tokens are waiting for the issuer to check them. Try "
                "again in a moment."
            )
        queue.length += 1
        try:
            async with queue.turn:
                yield
        finally:
            queue.length -= 1
            if not queue.length:
                del self._queues[sender]

    async def _ask(self, key: bytes, token: str, sender: str) -> _Content:
        metadata, label = await self._issuer.metadata(), self._client.provider.label
        method = self._client.provider.client_auth
        if metadata.introspect is None:
            raise BadBearer("opaque", expected="a JWT, as the issuer has no introspection")
        reply = await self._issuer.ask(
            post(
                self._client,
                endpoint=metadata.introspect,
                values={"token": token, "token_type_hint": "access_token"},
                client_auth=client_auth_of(method, metadata.introspect_auths),
                now=self._clock(),
            )
        )
        if reply.status_code != 200:
            raise Failed(
                f"{label} could not check the access token: its introspection endpoint answered "
                f"HTTP {reply.status_code}."
            )
        says = members_of(reply, self._client.provider)
        self._good.pop(key, None)  # the new answer must come last
        try:
            verified = introspected(says, resource=self._resource, now=self._clock())
        except BadBearer as error:
            refused = _Refused(
                reason=error.reason, expected=error.expected, received=error.received
            )
            self._refused[key] = (self._ticks(), refused)
            self._refusals.consume(sender)
            return refused
        self._good[key] = (self._ticks(), verified)
        return verified


def _drop(known: OrderedDict[bytes, tuple[float, _Answer]], *, since: float) -> None:
    """Remove answers that are older than `since`, and the oldest ones beyond the limit."""
    while known and (len(known) > KNOWN_AT_MOST or next(iter(known.values()))[0] <= since):
        known.popitem(last=False)
