"""The work of `once`: which arguments it gets, and how its result is stored and read back."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, computed_field

from flows.elicitation.once_work import OnceWork
from flows.errors import InvalidQuestion, ResultNotStored


class Order(BaseModel):
    id: str
    day: date


@dataclass
class Seat:
    row: int
    taken: bool = True


ORDER = Order(id="7", day=date(2031, 5, 28))


async def order(key: str) -> Order:
    return ORDER


async def day() -> date:
    return ORDER.day


def seats() -> list[Seat]:
    return [Seat(row=3)]


def later(key: str) -> Awaitable[Order]:
    return order(key)


class Shop:
    async def __call__(self, key: str) -> Order:
        return ORDER

    async def buy(self, key: str) -> Order:
        return ORDER


def untyped(key):
    return {"key": key}


async def result(work: object, returns: Any = None) -> tuple[Any, Any]:
    """Return the stored JSON of the work and the value that the tool gets."""
    doing = OnceWork("work", work, returns)
    stored = json.loads(json.dumps(await doing("the key")))
    return stored, doing.typed(stored)


@pytest.mark.parametrize(
    ("work", "typed"),
    [
        (order, ORDER),
        (day, ORDER.day),
        (seats, [Seat(row=3)]),
        (later, ORDER),
        (Shop(), ORDER),
        (Shop().buy, ORDER),
        (partial(order, "another key"), ORDER),
        (untyped, {"key": "the key"}),
    ],
)
async def test_result_has_the_annotated_type_after_conversion_to_json(work, typed):
    # finding: XA10
    _stored, given = await result(work)
    assert given == typed
    assert type(given) is type(typed)


async def test_returns_gives_the_type_of_a_lambda():
    assert await result(lambda: ORDER, Order) == ({"id": "7", "day": "2031-05-28"}, ORDER)
    assert (await result(lambda: ORDER))[1] == {"id": "7", "day": "2031-05-28"}


async def test_coroutine_is_awaited_or_closed():
    assert (await result(order("")))[1]["id"] == "7"
    unused = day()
    OnceWork("work", unused, None).close()
    with pytest.raises(RuntimeError, match="cannot reuse"):
        await unused


@pytest.mark.parametrize(
    ("work", "given"),
    [
        (lambda: "none", "none"),
        (lambda key: key, "the key"),
        (lambda key="": key, "the key"),
        (lambda k=None: k, "the key"),
        (lambda item=3: item, 3),
        (lambda key, item=3: [key, item], ["the key", 3]),
        (lambda *all_: list(all_), ["the key"]),
        (str.upper, "THE KEY"),
    ],
)
async def test_work_gets_the_key_if_it_has_a_parameter_for_it(work, given):
    # finding: XA13
    assert (await result(work))[1] == given


def each() -> Iterator[int]:
    yield 1


async def each_later() -> AsyncIterator[int]:
    yield 1


def response() -> httpx.Response:
    raise AssertionError("the work must not run")


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (divmod, "more than one argument"),
        (lambda *, item: item, "more than one argument"),
        ({"id": 1}, "must be a function, not dict"),
        (None, "must be a function, not NoneType"),
        (response, "returns Response, which cannot be stored"),
        (each, "contains `yield`"),
        (partial(each_later), "contains `yield`"),
    ],
)
def test_unusable_work_is_refused_before_it_runs(work, words):
    with pytest.raises(InvalidQuestion, match=words):
        OnceWork("work", work, None)


async def number() -> int:
    return {"id": 1}  # type: ignore[return-value]


def unsized() -> Order:
    return {"id": 7}  # type: ignore[return-value]


def nothing() -> None:
    return 1  # type: ignore[return-value]


@pytest.mark.parametrize(
    ("work", "stored", "words"),
    [
        (number, {"id": 1}, r"is not int, the type that work should return \(Input should be"),
        (unsized, {"id": 7}, r"is not Order, the .* \(id: Input should be a valid string\)"),
        (nothing, 1, "is not NoneType"),
    ],
)
async def test_result_of_another_type_is_stored_and_refused(work, stored, words):
    doing = OnceWork("work", work, None)
    assert await doing("the key") == stored
    with pytest.raises(ResultNotStored, match=words):
        doing.typed(stored)


class Sealed(BaseModel):
    @computed_field  # type: ignore[prop-decorator]
    @property
    def mark(self) -> str:
        raise RuntimeError("no mark")


def raw() -> bytes:
    return b"\xff"


@pytest.mark.parametrize("work", [raw, Sealed, partial(Sealed)])
async def test_result_whose_conversion_raises_does_not_fail_the_work(work):
    # The asker then records that the work is done. Otherwise the next call would do it again.
    given = await OnceWork("work", work, None)("the key")
    assert isinstance(given, bytes | Sealed)


async def test_annotation_that_cannot_be_resolved_is_ignored():
    def work() -> "NotThere":  # type: ignore[name-defined]  # noqa: F821
        return [1]

    assert await result(work) == ([1], [1])


async def test_function_can_use_the_event_loop():
    work: Callable[[], Any] = lambda: asyncio.create_task(day())  # noqa: E731
    assert (await result(work, date))[1] == ORDER.day
