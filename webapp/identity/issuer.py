"""The issuer: its metadata and signing keys, fetched and cached.

Risks: tokens with unknown keys, which anyone can send, each cause a request to the issuer. There is
therefore only one fetch at a time, and at most one in 30 seconds. If the issuer is down, the cached
keys work for a day after their fetch. A key may also be newer than the cached keys. Until a newer
fetch has ended, the caller is therefore asked to try again, and gets no error about an invalid
token.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import httpx

from flows.errors import Failed
from flows.oauth.discovery import Metadata, MetadataRefused, discover
from flows.oauth.id_token import fetched_keys
from flows.oauth.provider import Provider
from webapp.deadline import Clock
from webapp.http.client import run_talk

# Sends one request without following redirects. Raises Failed or httpx.HTTPError.
Fetch: TypeAlias = Callable[[httpx.Request], Awaitable[httpx.Response]]

FRESH = timedelta(hours=1)
KEYS_VALID_FOR = timedelta(days=1)
BETWEEN_FETCHES = timedelta(seconds=30)
UNKNOWN_AT_MOST = 1000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    metadata: Metadata
    keys: Sequence[Mapping[str, Any]]
    fetched_at: datetime
    number: int  # the number of the fetch


class Issuer:
    """A client for one issuer. `provider` declares the issuer and sets `discovers`."""

    def __init__(self, provider: Provider, *, fetch: Fetch, clock: Clock) -> None:
        """Raise ValueError for a provider without discovery."""
        if not provider.discovers or provider.issuer is None:
            raise ValueError(
                f"The provider {provider.label} cannot be used for sign-in: it has no issuer with "
                "discovery."
            )
        self.provider = provider
        self.url = provider.issuer
        self._fetch = fetch
        self._clock = clock
        self._known: _Known | None = None
        self._tried_at: datetime | None = None
        self._is_failing = False
        self._error: Failed | None = None  # of the last fetch, if it failed
        self._why = f"{provider.label} does not answer."  # why there are no keys
        self._begun = 0  # the number of fetches that have begun
        # For each unknown key name, by its hash: how many fetches had begun when the name was first
        # used.
        self._unknown: OrderedDict[int, int] = OrderedDict()
        self._task: asyncio.Task[None] | None = None

    async def metadata(self) -> Metadata:
        """Return the issuer's metadata. Raises Failed if it is not available."""
        return (await self._known_or_fetched(lambda _: True)).metadata

    async def keys(self, key_id: str | None) -> Sequence[Mapping[str, Any]]:
        """Return the keys with this id, or all keys if the token has no key id. May be empty.

        Raises:
            Failed: The keys are not available, or this key may be newer than the cached ones.
        """

        def has_it(known: _Known) -> bool:
            return key_id is None or any(key.get("kid") == key_id for key in known.keys)

        begun = self._begun
        known = await self._known_or_fetched(has_it)
        if key_id is not None and not has_it(known):
            begun = self._unknown.setdefault(hash(key_id), begun)
            while len(self._unknown) > UNKNOWN_AT_MOST:
                self._unknown.popitem(last=False)
            if known.number <= begun:
                seconds = f"{BETWEEN_FETCHES.total_seconds():.0f} seconds"
                raise Failed(
                    "The key that signed this access token is not known yet. The server fetches "
                    f"the keys of {self.provider.label} at most once every {seconds}. Try again "
                    "after that."
                )
        return [key for key in known.keys if key_id in (None, key.get("kid"))]

    async def ask(self, request: httpx.Request) -> httpx.Response:
        """Send a request to the issuer. Raises Failed if there is no answer."""
        try:
            return await self._fetch(request)
        except httpx.HTTPError as error:
            raise Failed(f"{self.provider.label} does not answer.") from error

    async def aclose(self) -> None:
        """Cancel a fetch that is in progress."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _known_or_fetched(self, is_enough: Callable[[_Known], bool]) -> _Known:
        known = self._usable()
        if known is None or not is_enough(known) or self._since(known.fetched_at) >= FRESH:
            task = self._fetching()
            # After a failed fetch, wait for the issuer only if the cached keys are not enough.
            needs_it = known is None or not is_enough(known) or not self._is_failing
            if task is not None and needs_it:
                # A caller that goes away must not cancel the fetch for others.
                await asyncio.shield(task)
            known = self._usable()
        if known is None:
            why = f"{self._why} So the server cannot check who the caller is."
            raise Failed(why) from self._error
        return known

    def _usable(self) -> _Known | None:
        known = self._known
        return known if known and self._since(known.fetched_at) < KEYS_VALID_FOR else None

    def _since(self, moment: datetime) -> timedelta:
        """Return the time between `moment` and now, never negative if the clock was set back."""
        return abs(self._clock() - moment)

    def _fetching(self) -> asyncio.Task[None] | None:
        """Return the fetch in progress or a new one, or None if it is too soon for a new one."""
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
            if isinstance(error, Failed):
                self._why, self._error = str(error), error
            why = getattr(error, "why", str(error))
            about = {"issuer": self.url, "why": why}
            _log.warning("issuer.unavailable", extra=about, exc_info=error)
        except Exception:  # noqa: BLE001 - end of the task
            self._is_failing = True
            _log.exception("issuer.failed", extra={"issuer": self.url})
        else:
            self._is_failing, self._error = False, None
            before = {key.get("kid") for key in self._known.keys} if self._known else set[Any]()
            for name in before - {key.get("kid") for key in known.keys}:
                self._unknown[hash(name)] = 0  # a removed key is refused at once
            self._known = known

    async def _read(self) -> _Known:
        metadata = await run_talk(discover(self.provider), self._fetch)
        if metadata.jwks is None:
            raise MetadataRefused(
                f"The metadata of {self.provider.label} has no jwks_uri, so the server cannot "
                "fetch its keys."
            )
        keys = await run_talk(fetched_keys(metadata.jwks, self.provider), self._fetch)
        return _Known(metadata=metadata, keys=keys, fetched_at=self._clock(), number=self._begun)
