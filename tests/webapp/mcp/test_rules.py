"""Validation by an author's model: the page shows its errors before an answer is accepted."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Self, TypedDict

import msgspec
import pytest
from pydantic import (
    AfterValidator,
    BaseModel,
    EmailStr,
    Field,
    StringConstraints,
    field_validator,
    model_validator,
)

from flows import elicit
from flows.elicitation.states import Completion, Json
from flows.errors import InvalidAnswer
from flows.question import Question
from flows.schema.schema import Fault, schema_of
from tests.support.clock import Clock
from tests.support.hand_loop import HandLoop
from tests.support.mcp_server import BOTH, URL, caller_of, soon, text_of
from tests.support.service_env import asked, process
from webapp.elicitations.watcher import listen
from webapp.kinds.rules import ANSWERED_WITHIN, NOT_CHECKED
from webapp.records.values import Check
from webapp.stores.sqlite import MemoryStore


class Stay(BaseModel):
    first: int = Field(ge=1, le=31)
    last: int = Field(ge=1, le=31)
    name: str

    @field_validator("name")
    @classmethod
    def is_a_name(cls, name: str) -> str:
        if not name.istitle():
            raise ValueError("A name begins with a capital.")
        return name

    @model_validator(mode="after")
    def ends_after_it_began(self) -> Self:
        if self.last < self.first:
            raise ValueError("The last day is before the first.")
        return self


WRONG: dict[str, Json] = {"first": 3, "last": 2, "name": "Ada"}
RIGHT: dict[str, Json] = {"first": 2, "last": 3, "name": "Ada"}
QUESTIONS = {"form": elicit.form("When?", Stay), "secret": elicit.secret("When?", Stay)}


def strings(content: Mapping[str, Json]) -> dict[str, str]:
    return {f"answer.{name}": str(value) for name, value in content.items()}


@pytest.mark.parametrize("kind", QUESTIONS)
async def test_page_shows_validation_errors_and_accepts_nothing(server, revision, kind):
    # finding: A5
    @server.tool()
    async def book() -> str:
        stay: Stay = await QUESTIONS[kind]
        return f"{type(stay).__name__} {stay.first} to {stay.last} for {stay.name}"

    async with caller_of(server, revision, declares=URL) as (env, caller):
        call = caller.call("book")
        link, person = await caller.link(), await env.person()
        page = await person.visit(link)
        for typed, words, place in [
            (WRONG, "The last day is before the first.", None),
            ({**RIGHT, "name": "ada"}, "A name begins with a capital.", "answer.name"),
        ]:
            answer = await person.browser.post(link, data={"csrf": page.csrf, **strings(typed)})
            assert answer.status_code == 422
            assert words in answer.text
            assert ("aria-invalid" in answer.text) == (place is not None)
            assert await env.status(link) in ("pending", "opened")
        done = await person.browser.post(link, data={"csrf": page.csrf, **strings(RIGHT)})
        assert done.status_code == 303
        assert text_of(await soon(call)) == "Stay 2 to 3 for Ada"


async def test_validation_error_reaches_the_clients_form(server, revision):
    # finding: A5
    @server.tool()
    async def book() -> str:
        stay = await QUESTIONS["form"]
        return f"{stay.first} to {stay.last}"

    # finding: XC3
    async with caller_of(server, revision, declares=BOTH, fills=[WRONG]) as (env, caller):
        result = await caller.result("book")
        assert result.is_error
        assert "The last day is before the first." in text_of(result)
        assert result.meta["code"] == "INVALID_INPUT"
        assert await env.status(await caller.link_in_result("book")) == "pending"


@dataclass
class Asking:
    """A question in a shared store, asked by one process and shown on the page of another."""

    question: Question[Any]
    clock: Clock
    is_delivered: bool = True

    async def faults(self, content: Mapping[str, Json]) -> tuple[list[Fault], list[Check]]:
        store = MemoryStore()
        async with process(store, self.clock) as page, process(store.sibling(), self.clock) as tool:
            both = [listen(one.elicitations) for one in (page, tool)]
            listening = [asyncio.ensure_future(one) for one in both]
            request: Any = self.question.request
            terms = msgspec.to_builtins(request.terms)
            elicitation = await asked(tool, kind=request.kind, terms=terms)
            if self.is_delivered:
                tool.kinds.rules.remember(elicitation, self.question.request)
            await asyncio.sleep(0)
            found = await page.kinds.rules.faults(elicitation, content)
            for one in listening:
                one.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
            checks = [
                await page.elicitations.rows.open(record, Check)
                for record in await store.list("check")
            ]
            return list(found), checks


@pytest.mark.parametrize("kind", QUESTIONS)
@pytest.mark.parametrize(
    ("typed", "faults"),
    [(RIGHT, []), (WRONG, [Fault(path="", message="The last day is before the first.")])],
)
async def test_serving_process_gets_validation_from_the_asking_process(
    kind, typed: dict[str, Json], faults: list[Fault]
):
    # finding: A5
    found, (check,) = await Asking(QUESTIONS[kind], Clock()).faults(typed)
    assert found == faults
    assert check.content is None  # typed values are not stored


def test_unanswered_validation_accepts_nothing_and_allows_a_retry():
    # finding: A5
    clock = Clock()
    loop = HandLoop(clock)
    asking = Asking(QUESTIONS["form"], clock, is_delivered=False)
    found, (check,) = loop.run_until_complete(asking.faults(RIGHT))
    assert found == [NOT_CHECKED]
    assert loop.time() == pytest.approx(ANSWERED_WITHIN, abs=1)
    assert (check.erase_at - clock.now).total_seconds() < 30
    loop.close()


class Broken(BaseModel):
    name: str

    @field_validator("name")
    @classmethod
    def fails(cls, name: str) -> str:
        raise RuntimeError(name)


async def test_failing_validator_accepts_nothing_and_shows_no_input():
    found, _ = await Asking(elicit.form("Who?", Broken), Clock()).faults({"name": "Ada"})
    assert [fault.path for fault in found] == [""]
    assert "Ada" not in found[0].message


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Plain(BaseModel):
    colour: Colour
    size: Literal["s", "m"] = "m"
    number: int = Field(ge=1, description="How many.")
    share: float | None = None
    tags: list[Colour] = []
    is_gift: bool = False


async def test_completion_by_id_is_validated(server, revision):
    # finding: A5
    @server.tool()
    async def stay() -> str:
        return (await elicit.form("When?", Stay, elicitation_id="order-8")).name

    async with caller_of(server, revision, declares=URL) as (env, caller):
        call = caller.call("stay")
        await caller.link()
        with pytest.raises(InvalidAnswer, match="The last day is before the first"):
            await env.service.completing.complete("order-8", WRONG)
        completed = await env.service.completing.complete("order-8", RIGHT)
        assert completed is Completion.ACCEPTED
        assert text_of(await soon(call)) == "Ada"


@dataclass
class PlainData:
    name: str
    count: int = 1


@dataclass
class CheckedData:
    name: str

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("A name, please.")


class PlainDict(TypedDict):
    name: str


class AnnotatedModel(BaseModel):
    name: Annotated[str, AfterValidator(str.title)]


class Mail(BaseModel):
    to: EmailStr


class PostInit(BaseModel):
    name: str

    def model_post_init(self, _context: Any) -> None:
        assert self.name


class Stripped(BaseModel, str_strip_whitespace=True):
    name: str = Field(min_length=3)


class Lowered(BaseModel):
    name: Annotated[str, StringConstraints(to_lower=True)]


@pytest.mark.parametrize(
    ("asked_for", "has_rules"),
    [
        *((kind, False) for kind in (Plain, PlainData, PlainDict, str)),
        *((kind, True) for kind in (Stay, CheckedData, AnnotatedModel, Mail, PostInit)),
        *((kind, True) for kind in (Stripped, Lowered)),
        ({"type": "object", "properties": {"name": {"type": "string"}}}, False),
    ],
)
def test_schema_reports_if_the_type_has_validation_rules(asked_for, has_rules):
    # finding: A5
    assert schema_of(asked_for).has_rules is has_rules
