"""API keys: their format, what is stored of them, and how they end."""

from collections.abc import AsyncIterator
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.clock import Clock
from tests.support.living import living
from tests.support.service_env import process
from webapp.identity.api_keys import (
    KEY_RETENTION,
    PREFIX,
    ApiKeyRefused,
    KeyScope,
    is_key,
    new_text,
)
from webapp.records.owners import SERVICE
from webapp.records.values import ApiKey
from webapp.service import Service
from webapp.stores.sqlite import MemoryStore

ASK = [KeyScope.ASK]
QUARTER = timedelta(days=90)


@pytest.fixture
async def service(clock: Clock) -> AsyncIterator[Service]:
    async with living(process(MemoryStore(), clock)) as service:
        yield service


@pytest.fixture
def clock() -> Clock:
    return Clock()


async def made(service: Service, **about: object) -> tuple[str, ApiKey]:
    given = {"program": "shop", "scopes": ASK, "expires_at": service.clock() + QUARTER}
    return await service.identity.api_keys.new(**{**given, **about})  # type: ignore[arg-type]  # as given


async def test_key_is_found_only_by_exact_text(service: Service) -> None:
    text, key = await made(service)
    found = await service.identity.api_keys.of(text)
    assert (found.id, found.program, found.scopes) == (key.id, "shop", ("ask",))
    for other in (new_text(), "", text[:-1], text + "a", f" {text}", key.id):
        with pytest.raises(ApiKeyRefused, match="elicit api-keys new"):
            await service.identity.api_keys.of(other)


async def test_text_of_key_is_not_stored(service: Service) -> None:
    text, _ = await made(service)
    async for page in service.elicitations.store.scan():
        assert not any(text.encode() in record.sealed for record in page)
    rows = [
        await service.elicitations.read(ApiKey, owner=SERVICE, id=key.id)
        for key in await service.identity.api_keys.all()
    ]
    assert not any(text in str(row) or text.removeprefix(PREFIX) in str(row) for row in rows)


async def test_expired_key_is_refused(service: Service, clock: Clock) -> None:
    text, _ = await made(service)
    clock.tick(days=90)
    with pytest.raises(ApiKeyRefused):
        await service.identity.api_keys.of(text)


async def test_key_revoked_by_other_process_is_refused_immediately(clock: Clock) -> None:
    store = MemoryStore()
    async with process(store, clock) as one, process(store, clock) as other:
        text, key = await made(one)
        assert (await one.identity.api_keys.of(text)).id == key.id
        await other.identity.api_keys.revoke(key.id)
        with pytest.raises(ApiKeyRefused):
            await one.identity.api_keys.of(text)
        (stored,) = await one.identity.api_keys.all()
        assert (stored.status, stored.erase_at) == ("revoked", clock() + KEY_RETENTION)


async def test_last_use_of_key_is_written_once_per_minute(service: Service, clock: Clock) -> None:
    text, _ = await made(service)

    async def written() -> ApiKey:
        await service.identity.api_keys.of(text)
        return (await service.identity.api_keys.all())[0]

    first = await written()
    assert first.used_at == clock()
    clock.tick(seconds=59)
    assert (await written()).version == first.version
    clock.tick(seconds=1)
    assert (await written()).used_at == clock()


@pytest.mark.parametrize(
    ("about", "why"),
    [
        ({"scopes": [KeyScope.ASK, KeyScope.APPROVE], "owners": ["ann"]}, "create two keys"),
        ({"scopes": [KeyScope.APPROVE]}, "--owner USER"),
        ({"scopes": []}, "needs a scope"),
        ({"scopes": [KeyScope.ASK, KeyScope.OPERATE]}, "create two keys"),
        ({"scopes": [KeyScope.OPERATE], "owners": ["ann"]}, "remove --owner"),
        ({"scopes": [KeyScope.TOKENS]}, "--scopes ask,tokens"),
        ({"scopes": [KeyScope.REFUND, KeyScope.TOKENS]}, "also need ask"),
        ({"program": ""}, "1 to 64"),
        ({"program": "a\nb"}, "1 to 64"),
        ({"owners": [""]}, "one of your users"),
    ],
)
async def test_invalid_key_settings_are_refused(
    service: Service, about: dict[str, object], why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        await made(service, **about)
    assert await service.identity.api_keys.all() == []


@given(place=st.integers(len(PREFIX), 56), character=st.sampled_from("aZ09"))
def test_key_with_changed_character_is_invalid(place: int, character: str) -> None:
    text = new_text()
    other = text[:place] + character + text[place + 1 :]
    assert is_key(text)
    assert is_key(other) == (other == text)


def test_keys_share_format_which_scanners_can_find() -> None:
    assert len({new_text() for _ in range(50)}) == 50
    assert all(text.startswith("elicit_key_") and len(text) == 57 for text in [new_text()])
