"""The issuer's keys: fetched rarely, one fetch at a time, and reused while the issuer is down."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest
from joserfc.jwk import ECKey

from flows.errors import Failed
from flows.providers import github, openid
from tests.support.clock import Clock
from webapp.identity.issuer import UNKNOWN_AT_MOST, Issuer

URL = "https://login.example/tenant"
OPENID = f"{URL}/.well-known/openid-configuration"
RFC_8414 = "https://login.example/.well-known/oauth-authorization-server/tenant"
KEYS = f"{URL}/jwks"
SAYS = {
    "issuer": URL,
    "authorization_endpoint": f"{URL}/authorize",
    "token_endpoint": f"{URL}/token",
    "jwks_uri": KEYS,
}
PUBLIC = ECKey.generate_key("P-256").as_dict(private=False)


class FakeIssuer:
    """The issuer's server. `replies` can be changed, and a fetch can be delayed."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.replies: dict[str, Any] = {OPENID: SAYS, KEYS: {"keys": [{**PUBLIC, "kid": "one"}]}}
        self.is_down = False
        self.held: asyncio.Event | None = None

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(str(request.url))
        if self.held is not None:
            await self.held.wait()
        if self.is_down:
            raise httpx.ConnectError("down", request=request)
        if str(request.url) not in self.replies:
            return httpx.Response(404)
        return httpx.Response(200, json=self.replies[str(request.url)])

    def publish(self, *names: str) -> None:
        self.replies[KEYS] = {"keys": [{**PUBLIC, "kid": name} for name in names]}

    @property
    def fetches(self) -> int:
        return self.asked.count(OPENID)


@pytest.fixture
def there() -> FakeIssuer:
    return FakeIssuer()


@pytest.fixture
async def issuer(there: FakeIssuer, clock: Clock) -> AsyncIterator[Issuer]:
    issuer = Issuer(openid("signin", URL, label="Example"), fetch=there, clock=clock)
    yield issuer
    await issuer.aclose()


async def names(issuer: Issuer, key_id: str | None = None) -> list[str]:
    return [str(key["kid"]) for key in await issuer.keys(key_id)]


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_keys_are_fetched_once_per_hour(
    there: FakeIssuer, issuer: Issuer, clock: Clock
) -> None:
    assert there.asked == []
    assert await names(issuer, "one") == ["one"]
    assert (await issuer.metadata()).token == f"{URL}/token"
    clock.tick(minutes=59)
    assert await names(issuer, "one") == ["one"]
    assert there.asked == [OPENID, KEYS]
    clock.tick(minutes=1)
    assert await names(issuer, "one") == ["one"]
    assert there.fetches == 2


async def test_new_key_is_fetched_when_token_names_key(
    there: FakeIssuer, issuer: Issuer, clock: Clock
) -> None:
    await issuer.keys("one")
    there.publish("one", "two")
    clock.tick(seconds=30)
    assert await names(issuer, "two") == ["two"]
    assert await names(issuer) == ["one", "two"]


async def test_withdrawn_key_is_refused_after_next_fetch(
    there: FakeIssuer, issuer: Issuer, clock: Clock
) -> None:
    await issuer.keys("one")
    there.publish("two")
    clock.tick(hours=1)
    assert await names(issuer, "one") == []


async def test_unknown_keys_cause_single_fetch_per_half_minute(
    there: FakeIssuer, issuer: Issuer, clock: Clock
) -> None:
    await issuer.keys("one")
    clock.tick(seconds=30)
    for number in range(1000):
        with contextlib.suppress(Failed):
            assert await names(issuer, f"made up {number}") == []
    assert there.fetches == 2
    clock.tick(seconds=29)
    with pytest.raises(Failed):
        await names(issuer, "made up")
    assert there.fetches == 2
    assert await names(issuer, "one") == ["one"]


async def test_key_newer_than_last_fetch_raises_failed_until_next_fetch(
    there: FakeIssuer, issuer: Issuer, clock: Clock
) -> None:
    # finding: XO11
    await issuer.keys("one")
    there.publish("one", "two")
    for _ in range(3):
        with pytest.raises(Failed, match="not known yet"):
            await issuer.keys("two")
    assert there.fetches == 1
    clock.tick(seconds=30)
    assert await names(issuer, "two") == ["two"]


async def test_key_missing_in_later_fetch_is_unknown(
    there: FakeIssuer, issuer: Issuer, clock: Clock
) -> None:
    # finding: XO11
    await issuer.keys("one")
    with pytest.raises(Failed):
        await issuer.keys("made up")
    clock.tick(seconds=30)
    assert await names(issuer, "another") == []  # causes the second fetch
    assert await names(issuer, "made up") == []  # answered from the second fetch
    assert there.fetches == 2


async def test_key_missing_from_a_fetch_begun_before_the_token_arrived_is_not_unknown(
    there: FakeIssuer, issuer: Issuer, clock: Clock
) -> None:
    # finding: XO11
    await issuer.keys("one")
    clock.tick(seconds=30)
    there.held = asyncio.Event()
    first = asyncio.create_task(names(issuer, "two"))
    await turns()
    second = asyncio.create_task(names(issuer, "three"))
    await turns()
    there.held.set()
    assert await first == []
    with pytest.raises(Failed):
        await second


async def test_unknown_key_names_use_bounded_memory(there: FakeIssuer, issuer: Issuer) -> None:
    # finding: XO11
    await issuer.keys("one")
    for number in range(3 * UNKNOWN_AT_MOST):
        with contextlib.suppress(Failed):
            await issuer.keys(f"made up {number}")
    assert len(issuer._unknown) <= UNKNOWN_AT_MOST


async def test_concurrent_callers_share_fetch(there: FakeIssuer, issuer: Issuer) -> None:
    there.held = asyncio.Event()
    waiting = [asyncio.create_task(names(issuer, "one")) for _ in range(50)]
    await turns()
    there.held.set()
    assert await asyncio.gather(*waiting) == [["one"]] * 50
    assert there.fetches == 1


async def test_cancelled_caller_does_not_end_fetch_of_others(
    there: FakeIssuer, issuer: Issuer
) -> None:
    there.held = asyncio.Event()
    first, second = (asyncio.create_task(names(issuer, "one")) for _ in range(2))
    await turns()
    first.cancel()
    await turns()
    there.held.set()
    assert await second == ["one"]
    assert there.fetches == 1
    assert first.cancelled()


async def test_keys_of_unreachable_issuer_are_used_for_a_day(
    there: FakeIssuer, issuer: Issuer, clock: Clock
) -> None:
    await issuer.keys("one")
    there.is_down = True
    clock.tick(hours=23, minutes=59)
    assert await names(issuer, "one") == ["one"]
    clock.tick(minutes=1)
    with pytest.raises(Failed, match=r"Example did not answer\. So the server cannot check"):
        await issuer.keys("one")
    there.is_down = False
    clock.tick(seconds=30)
    assert await names(issuer, "one") == ["one"]


async def test_callers_do_not_wait_for_hanging_issuer(
    there: FakeIssuer, issuer: Issuer, clock: Clock
) -> None:
    await issuer.keys("one")
    there.is_down = True
    clock.tick(hours=1)
    await issuer.keys("one")
    clock.tick(seconds=30)
    there.held = asyncio.Event()
    async with asyncio.timeout(300):
        assert await names(issuer, "one") == ["one"]  # the stored key is used while a fetch hangs
    await turns()
    there.is_down = False
    there.publish("one", "two")
    there.held.set()
    await turns()
    assert await names(issuer, "two") == ["two"]


async def test_unreachable_issuer_is_not_asked_at_each_call(
    there: FakeIssuer, issuer: Issuer, clock: Clock
) -> None:
    there.is_down = True
    for _ in range(20):
        with pytest.raises(Failed):
            await issuer.keys("one")
        with pytest.raises(Failed):
            await issuer.metadata()
    assert there.fetches == 1
    there.is_down = False
    clock.tick(seconds=30)
    assert await names(issuer, "one") == ["one"]


@pytest.mark.parametrize("is_down", [True, False])
async def test_clock_set_back_does_not_block_next_fetch(
    there: FakeIssuer, issuer: Issuer, clock: Clock, is_down: bool
) -> None:
    """A machine starts with a wrong time, asks the issuer, and then corrects its clock."""
    there.is_down = is_down
    with contextlib.suppress(Failed):
        await issuer.keys("one")
    there.is_down = False
    there.publish("two")
    clock.tick(hours=-2)
    assert await names(issuer, "two") == ["two"]
    # If the issuer was down at first, the key "one" was never fetched.
    with pytest.raises(Failed) if is_down else contextlib.nullcontext():
        assert await names(issuer, "one") == []
    assert there.fetches == 2
    for number in range(100):
        with contextlib.suppress(Failed):
            await issuer.keys(f"made up {number}")
    assert there.fetches == 2


async def test_keys_fetched_before_clock_was_set_back_are_fetched_again(
    there: FakeIssuer, issuer: Issuer, clock: Clock
) -> None:
    await issuer.keys("one")
    there.publish("two")
    clock.tick(hours=-1)
    assert await names(issuer, "one") == []
    there.is_down = True
    clock.tick(days=-2)
    with pytest.raises(Failed):
        await issuer.keys("two")


@pytest.mark.parametrize(
    "says",
    [
        {**SAYS, "issuer": "https://evil.example"},
        {**SAYS, "issuer": f"{URL}/"},
        {**SAYS, "jwks_uri": "http://login.example/jwks"},
        {**SAYS, "jwks_uri": "http://127.0.0.1/jwks"},
        {key: value for key, value in SAYS.items() if key != "jwks_uri"},
        {**SAYS, "jwks_uri": 7},
        ["no", "metadata"],
    ],
)
async def test_invalid_issuer_metadata_is_refused(
    there: FakeIssuer, issuer: Issuer, says: Any
) -> None:
    there.replies[OPENID] = says
    with pytest.raises(Failed):
        await issuer.keys("one")


@pytest.mark.parametrize("keys", [{"keys": []}, {"keys": "none"}, [], {"keys": [7]}])
async def test_empty_key_set_does_not_replace_valid_keys(
    there: FakeIssuer, issuer: Issuer, clock: Clock, keys: Any
) -> None:
    await issuer.keys("one")
    there.replies[KEYS] = keys
    clock.tick(hours=1)
    assert await names(issuer, "one") == ["one"]


async def test_alternative_metadata_location_is_tried(there: FakeIssuer, issuer: Issuer) -> None:
    there.replies[RFC_8414] = there.replies.pop(OPENID)
    assert await names(issuer, "one") == ["one"]
    assert there.asked == [OPENID, RFC_8414, KEYS]


async def test_unexpected_error_of_fetch_raises_failed(clock: Clock) -> None:
    async def breaks(_: httpx.Request) -> httpx.Response:
        raise RuntimeError("our fault")

    issuer = Issuer(openid("signin", URL), fetch=breaks, clock=clock)
    with pytest.raises(Failed):
        await issuer.keys("one")


async def test_close_cancels_hanging_fetch(there: FakeIssuer, clock: Clock) -> None:
    issuer = Issuer(openid("signin", URL), fetch=there, clock=clock)
    there.held = asyncio.Event()
    waiting = asyncio.create_task(issuer.keys("one"))
    await turns()
    await issuer.aclose()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_non_discoverable_or_insecure_provider_is_refused_as_issuer(
    there: FakeIssuer, clock: Clock
) -> None:
    with pytest.raises(ValueError, match="GitHub"):
        Issuer(github, fetch=there, clock=clock)
    with pytest.raises(ValueError, match="https"):
        openid("signin", "http://login.example")
    local = openid("signin", "http://127.0.0.1:8080/realm")
    assert Issuer(replace(local, label="Local"), fetch=there, clock=clock).url == local.issuer
