"""The issuer: what it says of itself and the keys that it signs with, fetched and kept.

What could go wrong: anybody may send tokens that name unknown keys, and each must not become a
request to the issuer. So there is one fetch at a time and one in 30 seconds, whatever is sent. An
issuer that is down is not the caller's fault: the keys from before go on, for a day. Nor is a key
that is newer than the last fetch: until another fetch has begun, nobody can say that there is no
such key, and the caller is told to come again, not that the token is bad.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import httpx

from flows.errors import Failed
from flows.oauth.discovery import Metadata, read_metadata
from flows.oauth.provider import Provider
from flows.oauth.requests import get
from flows.oauth.responses import keys_of
from webapp.deadline import Clock

# Sends one request as it is, following nothing; raises Failed or httpx.HTTPError.
Fetch: TypeAlias = Callable[[httpx.Request], Awaitable[httpx.Response]]

FRESH = timedelta(hours=1)
KEPT = timedelta(days=1)
BETWEEN_FETCHES = timedelta(seconds=30)
UNKNOWN_AT_MOST = 1000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    metadata: Metadata
    keys: Sequence[Mapping[str, Any]]
    fetched_at: datetime
    number: int  # of the fetch


class Issuer:
    """One issuer; `provider` declares it and `discovers` (see flows.providers.openid)."""

    def __init__(self, provider: Provider, *, fetch: Fetch, clock: Clock) -> None:
        """Raises ValueError for a provider that cannot be discovered."""
        if not provider.discovers or provider.issuer is None:
            raise ValueError(f"{provider.label} is not found out from an issuer.")
        self.provider = provider
        self.url = provider.issuer
        self._fetch = fetch
        self._clock = clock
        self._known: _Known | None = None
        self._tried_at: datetime | None = None
        self._is_failing = False
        self._begun = 0  # fetches
        # By the hash of a key's name, how many fetches had begun when a token named it first.
        self._unknown: OrderedDict[int, int] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    async def metadata(self) -> Metadata:
        """Raises Failed where it cannot be had."""
        return (await self._at_hand(lambda _: True)).metadata

    async def keys(self, key_id: str | None) -> Sequence[Mapping[str, Any]]:
        """Return the keys of this name, or all for a token that names none; perhaps there is none.

        Raises:
            Failed: The issuer's keys cannot be had, or this one may be newer than those at hand.
        """

        def has_it(known: _Known) -> bool:
            return key_id is None or any(key.get("kid") == key_id for key in known.keys)

        begun = self._begun
        known = await self._at_hand(has_it)
        if key_id is not None and not has_it(known):
            begun = self._unknown.setdefault(hash(key_id), begun)
            while len(self._unknown) > UNKNOWN_AT_MOST:
                self._unknown.popitem(last=False)
            if known.number <= begun:
                seconds = f"{BETWEEN_FETCHES.total_seconds():.0f} seconds"
                raise Failed(
                    "The key of this access token is not known yet. The keys of "
                    f"{self.provider.label} are fetched every {seconds} at most: try again then."
                )
        return [key for key in known.keys if key_id in (None, key.get("kid"))]

    async def ask(self, request: httpx.Request) -> httpx.Response:
        """Raises Failed where it does not answer."""
        try:
            return await self._fetch(request)
        except httpx.HTTPError as error:
            raise Failed(f"{self.provider.label} does not answer.") from error

    async def aclose(self) -> None:
        """Give up a fetch that is under way."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _at_hand(self, is_enough: Callable[[_Known], bool]) -> _Known:
        known = self._usable()
        if known is None or not is_enough(known) or self._since(known.fetched_at) >= FRESH:
            task = self._fetching()
            # Where the issuer did not answer last time nobody waits for it again without need.
            needs_it = known is None or not is_enough(known) or not self._is_failing
            if task is not None and needs_it:
                # Whoever goes away meanwhile must not end it for the others.
                await asyncio.shield(task)
            known = self._usable()
        if known is None:
            raise Failed(f"{self.provider.label} does not answer, so nobody can be known.")
        return known

    def _usable(self) -> _Known | None:
        known = self._known
        return known if known and self._since(known.fetched_at) < KEPT else None

    def _since(self, moment: datetime) -> timedelta:
        """Either way: a clock that was set back must not make us wait for the old time."""
        return abs(self._clock() - moment)

    def _fetching(self) -> asyncio.Task[None] | None:
        """The fetch that is under way, or a new one; None if it is too soon for that."""
        if self._task is None or self._task.done():
            if self._tried_at is not None and self._since(self._tried_at) < BETWEEN_FETCHES:
                return None
            self._tried_at = self._clock()
            self._begun += 1
            self._task = asyncio.create_task(self._renew())
        return self._task

    async def _renew(self) -> None:
        try:
            known = await self._read()
        except (Failed, httpx.HTTPError) as error:
            self._is_failing = True
            _log.warning("issuer.unavailable", extra={"issuer": self.url}, exc_info=error)
        except Exception:  # noqa: BLE001 - the edge of a task
            self._is_failing = True
            _log.exception("issuer.failed", extra={"issuer": self.url})
        else:
            self._is_failing = False
            before = {key.get("kid") for key in self._known.keys} if self._known else set[Any]()
            for name in before - {key.get("kid") for key in known.keys}:
                self._unknown[hash(name)] = 0  # taken back: no fetch is needed to know so
            self._known = known

    async def _read(self) -> _Known:
        metadata = await self._read_metadata()
        if metadata.jwks is None:
            raise Failed(f"{self.provider.label} does not publish its keys.")
        keys = keys_of(await self._get(metadata.jwks))
        if not keys:
            raise Failed(f"{self.provider.label} publishes no keys.")
        return _Known(metadata=metadata, keys=keys, fetched_at=self._clock(), number=self._begun)

    async def _read_metadata(self) -> Metadata:
        """OpenID Connect's place for it, or that of RFC 8414, 3.1."""
        reply = await self._get(self.url.rstrip("/") + "/.well-known/openid-configuration")
        if reply.status_code == 404:
            parts = urlsplit(self.url)
            path = "/.well-known/oauth-authorization-server" + parts.path.rstrip("/")
            reply = await self._get(f"{parts.scheme}://{parts.netloc}{path}")
        return read_metadata(reply, self.provider)

    async def _get(self, url: str) -> httpx.Response:
        return await self._fetch(get(url, provider=self.provider))
