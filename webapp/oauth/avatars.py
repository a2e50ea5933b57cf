"""Avatars: fetches a provider's pictures of people, so that no browser contacts the provider.

Risks: a URL leads into the server's own network, a response never ends, or a page or drawing runs
scripts. The provider could also receive a request whenever a person opens a page. So Outbound
checks each URL, and the bytes must be those of a picture. The picture, or the fact that the URL has
none, is cached for a while in this process's memory, up to a size limit.
"""

import asyncio
import logging
from collections import OrderedDict
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeAlias
from weakref import WeakValueDictionary

import httpx

from flows.errors import Failed
from flows.oauth.requests import USER_AGENT
from flows.origin import origin_of
from webapp.deadline import Clock
from webapp.http.client import Outbound
from webapp.http.rate_limit import Rates

PICTURE_BYTES_AT_MOST = 256 * 1024
SECONDS_AT_MOST = 5.0  # for one picture, with its redirects
REQUESTS_AT_MOST = 3  # for one picture, so two redirects
KEPT_FOR = timedelta(hours=1)
NOT_ASKED_AGAIN_FOR = timedelta(minutes=10)
KEPT_BYTES_AT_MOST = 16 * 1024 * 1024
# The size that each cache entry counts in addition to its picture: at most 4096 entries fit.
ENTRY_BYTES = 4096
FETCHES_AT_ONCE = 16
# Per owner: a page of connected accounts fetches all its pictures at once.
PICTURES_AT_ONCE = 20
BETWEEN_PICTURES = timedelta(seconds=10)

# Not SVG: an SVG is a document and can run scripts.
_STARTS = {
    b"\x89PNG\r\n\x1a\n": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF87a": "image/gif",
    b"GIF89a": "image/gif",
}
_HEADERS = {
    "accept": "image/png, image/jpeg, image/webp, image/gif",
    "user-agent": USER_AGENT,
}
_Place: TypeAlias = tuple[str, str | None]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Avatar:
    content: bytes
    media_type: str  # according to its bytes, not to the response header


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kept:
    picture: Avatar | None
    until: datetime

    @property
    def size(self) -> int:
        return ENTRY_BYTES + (0 if self.picture is None else len(self.picture.content))


class Avatars:
    """A cache of pictures, and of URLs without a picture. It fetches each URL once."""

    def __init__(self, *, outbound: Outbound, clock: Clock) -> None:
        self._outbound = outbound
        self._clock = clock
        self._kept: OrderedDict[_Place, _Kept] = OrderedDict()
        self._kept_bytes = 0
        # Concurrent requests for one picture wait for its lock. The entry disappears after the
        # last request.
        self._under_way: WeakValueDictionary[_Place, asyncio.Lock] = WeakValueDictionary()
        self._at_once = asyncio.Semaphore(FETCHES_AT_ONCE)
        self._paces = Rates(burst=PICTURES_AT_ONCE, every=BETWEEN_PICTURES, clock=clock)

    async def get(self, address: str, *, provider: str | None, owner: str) -> Avatar | None:
        """Return the picture at the URL, or None.

        `provider` is the origin of the provider that named the URL. Only that origin may be on this
        machine or have a port. `owner` has a rate limit for fetching pictures.
        """
        place = (address, provider)
        async with self._under_way.setdefault(place, asyncio.Lock()):
            kept = self._kept.get(place)
            if kept is not None and self._clock() < kept.until:
                self._kept.move_to_end(place)
                return kept.picture
            if self._paces.allow(owner):
                return None
            async with self._at_once:
                picture = await self._fetched(address, provider)
            self._keep(place, picture)
            return picture

    async def _fetched(self, address: str, provider: str | None) -> Avatar | None:
        try:
            async with asyncio.timeout(SECONDS_AT_MOST):
                return _read(await self._reply(address, provider))
        except (Failed, httpx.HTTPError, httpx.InvalidURL, ValueError, TimeoutError) as error:
            # Without the URL, which may identify the person.
            why = error if isinstance(error, Failed) else type(error).__name__
            _log.info("picture.not_fetched", extra={"why": why})
            return None

    async def _reply(self, address: str, provider: str | None) -> httpx.Response:
        """Fetch the URL and follow redirects. Each URL on the way is checked like the first."""
        url = httpx.URL(address)
        for _ in range(REQUESTS_AT_MOST):
            is_theirs = origin_of(str(url)) == provider
            if not is_theirs and url.port is not None:
                raise Failed("The picture's address names a port.")
            reply = await self._outbound.send(
                httpx.Request("GET", url, headers=_HEADERS),
                bytes_at_most=PICTURE_BYTES_AT_MOST,
                is_operators=is_theirs,
            )
            if not reply.has_redirect_location:
                return reply
            url = url.join(reply.headers["location"])
        raise Failed("The picture's address leads on and on.")

    def forget(self, address: str) -> None:
        """Remove the pictures of this URL from the cache, because the account was disconnected."""
        for place in [place for place in self._kept if place[0] == address]:
            self._kept_bytes -= self._kept.pop(place).size

    def _keep(self, place: _Place, picture: Avatar | None) -> None:
        life = NOT_ASKED_AGAIN_FOR if picture is None else KEPT_FOR
        former = self._kept.pop(place, None)
        kept = self._kept[place] = _Kept(picture=picture, until=self._clock() + life)
        self._kept_bytes += kept.size - (0 if former is None else former.size)
        while self._kept_bytes > KEPT_BYTES_AT_MOST:
            _, oldest = self._kept.popitem(last=False)
            self._kept_bytes -= oldest.size


def _read(reply: httpx.Response) -> Avatar:
    """Return the picture of a response. Raises Failed if it is not in an allowed format."""
    if reply.status_code != 200:
        raise Failed(f"Where the picture should be is none (HTTP {reply.status_code}).")
    content = reply.content
    media_type = next((kind for start, kind in _STARTS.items() if content.startswith(start)), None)
    if content[:4] == b"RIFF" and content[8:12] == b"WEBP":
        media_type = "image/webp"
    if media_type is None:
        raise Failed("What came is no picture.")
    return Avatar(content=content, media_type=media_type)
