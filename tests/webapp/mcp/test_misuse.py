"""Wrong uses of the verbs in a tool: the error names the tool's line and says what to write."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from datetime import time, timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

import pytest
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel

from flows import (
    ElicitError,
    InvalidQuestion,
    Money,
    Outcome,
    Question,
    elicit,
    supports_elicitation,
)
from flows.elicitation.states import Status
from flows.oauth.account import account_of
from flows.payments.receipt import Receipt
from flows.providers import github, openid
from tests.support.checkouts import payment
from tests.support.mcp_server import MODERN, caller_of, new_server, text_of
from tests.support.ways import protocol
from webapp.testing import elicit_person

Misuses: TypeAlias = dict[str, tuple[Callable[[], Any], str]]
ANY: Any = elicit  # misuses are errors for type checkers too
PRICE = Money("9.00", "EUR")
SITE = "https://a.example"
OUTCOME: Any = Outcome(status=Status.ACCEPTED)
NEEDS_SURE = ANY.needs(elicit.confirm("Sure?"))
STRING = {"type": "string"}


class Street(BaseModel):
    street: str


class Home(BaseModel):
    street: Street


class Tags(BaseModel):
    tags: list[str]


class Numbers(BaseModel):
    numbers: list[int] | None = None


class Either(BaseModel):
    size: int | str


class Alarm(BaseModel):
    at: time


class Pause(BaseModel):
    lasts: timedelta


class More(BaseModel):
    more: dict[str, str]


class Login(BaseModel):
    password: str


class Meal(BaseModel):
    dish: str


class Drink(BaseModel):
    name: str


class Plain:
    dish: str


class Size(Enum):
    SMALL = 1


def release(ending: object) -> None:
    """Stand for a callback of `on_end`."""


def with_two(first: object, second: object) -> None:
    """Stand for a function with one parameter too many."""


def yields() -> Iterator[int]:
    yield 1


async def check(meal: Meal) -> None:
    """Stand for the check of a form."""


async def check_again(meal: Meal) -> None:
    """Stand for another check of the same form."""


async def text() -> str:
    return SITE


@elicit.gate
def gated(_: object) -> None:
    """Stand for a function that is no tool and nevertheless has a gate."""


@elicit.needs(elicit.oauth(github))
async def needing(_: object) -> None:
    """Stand for a function that is no tool and nevertheless has needs."""


@elicit.gate(off=True)
def opened() -> int:
    return 1


def receipt() -> Any:
    return Receipt(payment(), resources=ANY)


def account() -> Any:
    known = {"provider": "github", "id": "1", "label": "octocat", "scopes": []}
    content = {**known, "access_token": "gho_1", "api": SITE, "api_hosts": [SITE]}
    resources: Any = SimpleNamespace(wait=None, now=None)
    return account_of(content, resources)


async def twice_in_gather() -> Any:
    work = elicit.once("work", lambda: 1), elicit.once("work", lambda: 1)
    return await asyncio.gather(*work)


async def in_context(question: Any) -> None:
    async with question:
        pass


async def each_of(question: Any) -> list[Any]:
    return [each async for each in question]


async def in_task_group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(ANY.confirm("Sure?"))


async def asked() -> bool:
    return await elicit.confirm("Sure?")


async def done_once() -> Any:
    return await elicit.once("work", lambda: 1)


async def in_thread(ask: Callable[[], Any]) -> Any:
    return await asyncio.to_thread(lambda: asyncio.run(ask()))


def unawaited() -> Any:
    return ANY.once("work", lambda: 1).close()


async def twice() -> Any:
    await elicit.once("work", lambda: 1)
    return await elicit.once("work", lambda: 1)


def builds(address: Any) -> Any:
    return ANY.url("Sign in", address, origins=[SITE])


# Misuses by what they are about, each with words of the sentence that the author needs.
FORGOTTEN_AWAIT: Misuses = {
    "question not awaited": (lambda: bool(ANY.confirm("Sure?")), "write `await` before the q"),
    "question never asked": (lambda: [elicit.confirm("Sure?")][1:], "write `await` before the q"),
    "attribute of question": (lambda: ANY.oauth(github).access_token, "write `await` before the q"),
    "item of question": (lambda: ANY.form("Meal?", Meal)["dish"], "write `await` before the q"),
    "question in a loop": (lambda: list(ANY.form("Name?")), "write `await` before the q"),
    "questions as answers": (
        lambda: list(ANY.together(elicit.confirm("Sure?"))),
        "write `await` before the q",
    ),
    "question plus text": (lambda: "You: " + ANY.form("Name?"), "write `await` before the q"),
    "text in question": (lambda: "x" in ANY.form("Name?"), "write `await` before the q"),
    "question compared": (lambda: ANY.form("Age?") > 17, "write `await` before the q"),
    "question as context": (lambda: in_context(ANY.oauth(github)), "write `await` before the q"),
    "question in async for": (lambda: each_of(ANY.form("Name?")), "write `await` before the q"),
    "together in async for": (
        lambda: each_of(ANY.together(elicit.confirm("Sure?"))),
        "write `await` before the q",
    ),
    "if together": (
        lambda: bool(ANY.together(elicit.confirm("Sure?"))),
        "write `await` before the q",
    ),
    "question as a task": (
        lambda: asyncio.create_task(ANY.confirm("Sure?")),
        "write `await` before the q",
    ),
    "question in a task group": (in_task_group, "write `await` before the q"),
    "question as a number": (lambda: int(ANY.form("Age?")), "write `await` before the q"),
    "question as JSON": (lambda: json.dumps([ANY.form("Age?")]), "write `await` before the q"),
    "outcome not awaited": (
        lambda: [elicit.confirm("Sure?").outcome().close()],
        "write `await` before the q",
    ),
    "once not awaited": (
        lambda: [ANY.once("work", lambda: 1).close()],
        "write `await` before elicit.once. The work",
    ),
    "end not awaited": (
        lambda: [ANY.on_end(release, key="a").close()],
        "write `await` before elicit.on_end. The work",
    ),
    "spend not awaited": (lambda: [receipt().spend().close()], "before Receipt.spend. The work"),
    "invalidate not awaited": (
        lambda: [account().invalidate().close()],
        "write `await` before Account.invalidate",
    ),
}
ACCOUNTS: Misuses = {
    "scopes as text": (lambda: ANY.oauth("github", scopes="repo"), "scopes=['repo']"),
    "scopes by position": (lambda: ANY.oauth("github", ["repo"]), "scopes=..."),
    "scopes of None": (lambda: ANY.oauth("github", scopes=None), "must be a list of texts"),
    "scopes as dict": (lambda: ANY.oauth("github", scopes={"repo": 1}), "must be a list of texts"),
    "scopes as numbers": (lambda: ANY.oauth("github", scopes=[1]), "must be a list of texts"),
    "scope with a space": (lambda: ANY.oauth("github", scopes=["repo user"]), "not a valid scope"),
    "provider as number": (lambda: ANY.oauth(7), "provider must be Provider or str, not int"),
    "provider of None": (lambda: ANY.oauth(None), "provider must be Provider or str, not NoneType"),
    "provider as function": (lambda: ANY.oauth(openid), "not function"),
    "provider in capitals": (lambda: ANY.oauth("GitHub"), "not a valid name of a provider"),
    "provider misspelt": (lambda: ANY.oauth("gihub"), "Perhaps 'github' is meant"),
    "account as number": (lambda: ANY.oauth("github", account=3), "account must be str or None"),
    "attribute of an account": (lambda: account().token, "Perhaps Account.access_token is"),
    "item of an account": (lambda: account()["label"], "Write Account.label"),
    "attribute of the caller": (lambda: ANY.caller().email, "There is no CallingPerson.email"),
    "attribute of an outcome": (
        lambda: OUTCOME.value,
        "There is no Outcome.value. It has accepted",
    ),
    "key of a provider without": (lambda: ANY.api_key(github), "ask with elicit.oauth"),
    "key with scopes": (lambda: ANY.api_key("github", scopes=["repo"]), "'scopes'"),
}
PAYMENTS: Misuses = {
    "float amount": (lambda: ANY.payment(Money(9.0, "EUR"), "A report"), "a float is not exact"),  # type: ignore[arg-type]
    "float price": (lambda: ANY.payment(9.0, "A report"), "price must be Money, not float"),
    "price as text": (lambda: ANY.payment("9.00", "A report"), "price must be Money, not str"),
    "amount with its currency": (lambda: Money("9.00 EUR"), "'currency'"),  # type: ignore[call-arg]
    "amount with a comma": (lambda: Money("9,00", "EUR"), "write digits and one point"),
    "amount with a third decimal": (lambda: Money("9.001", "EUR"), "round it first"),
    "amount of zero": (lambda: Money("0", "EUR"), "more than zero"),
    "negative amount": (lambda: Money("-9", "EUR"), "more than zero"),
    "currency before amount": (lambda: Money("EUR", "9.00"), "is not a currency"),
    "currency as sign": (lambda: Money("9.00", "€"), "is not a currency"),
    "currency in small letters": (lambda: Money("9.00", "eur"), "'EUR', not 'eur'"),
    "float in minor units": (lambda: Money.from_minor_units(9.5, "EUR"), "must be an int"),  # type: ignore[arg-type]
    "payment for nothing": (lambda: ANY.payment(PRICE), "'what'"),
    "payment for a blank": (lambda: ANY.payment(PRICE, " "), "what must say, in 1 to 250"),
    "payment for two lines": (
        lambda: ANY.payment(PRICE, "a\nb"),
        "what contains the character U+000A",
    ),
    "payment for a hidden word": (lambda: ANY.payment(PRICE, "a\u202eb"), "character U+202E"),
    "payment with a currency": (lambda: ANY.payment(PRICE, "It", currency="EUR"), "'currency'"),
    "once as text": (lambda: ANY.payment(PRICE, "It", once="yes"), "once must be bool, not str"),
    "processing misspelt": (
        lambda: ANY.payment(PRICE, "A report", processing="later"),
        "processing must be 'wait' or 'return'",
    ),
    "provider of payment misspelt": (
        lambda: ANY.payment(PRICE, "A report", provider="strip"),
        "Perhaps 'stripe' is meant",
    ),
    "refund of a number": (lambda: receipt().refund(3.0), "refund(reason=...)"),
    "refund of an amount": (lambda: receipt().refund(PRICE), "refund(reason=...)"),
    "refund for a number": (lambda: receipt().refund(reason=3), "reason must be str or None"),
    "spend with an argument": (lambda: receipt().spend(1), "Receipt.spend()"),
    "price plus a number": (lambda: ANY.payment(PRICE + 1, "It"), "Use price"),  # type: ignore[operator]
    "number times a price": (lambda: 2 * PRICE, "Use price.amount"),  # type: ignore[operator]
    "price above a number": (lambda: PRICE > 9, "Use price.amount"),  # type: ignore[operator]
    "sum of prices": (lambda: sum([PRICE, PRICE]), "Use price.amount"),
    "price as float": (lambda: float(PRICE), "Use price.amount"),  # type: ignore[arg-type]
    "price with a format": (lambda: f"{PRICE:.2f}", "Use price.amount"),
    "attribute of a price": (lambda: PRICE.amuont, "Perhaps Money.amount is meant"),  # type: ignore[attr-defined]
    "attribute of a receipt": (lambda: receipt().total, "There is no Receipt.total. It has"),
    "item of a receipt": (lambda: receipt()["price"], "Write Receipt.price"),
}
FORMS: Misuses = {
    "list of texts": (lambda: elicit.form("Tags?", Tags), "Tags.tags: `list[str]`"),
    "list of numbers": (lambda: elicit.form("Which?", Numbers), "Numbers.numbers: `list[int]"),
    "nested model": (lambda: elicit.form("Where?", Home), "Home.street: `Street`"),
    "dict in a model": (lambda: elicit.form("What?", More), "More.more: `dict[str, str]`"),
    "union": (lambda: elicit.form("Which?", Either), "a field has one type"),
    "time": (lambda: elicit.form("When?", Alarm), "Alarm.at: `time`"),
    "timedelta": (lambda: elicit.form("How long?", Pause), "Pause.lasts: `timedelta`"),
    "number as schema": (lambda: elicit.form("How many?", int), "Use a model with one field"),
    "list as schema": (lambda: ANY.form("Which?", list[str]), "not list[str]"),
    "list of values as schema": (
        lambda: ANY.form("Which?", ["a", "b"]),
        "A schema must be str, a model",
    ),
    "enum as schema": (lambda: elicit.form("Which?", Size), "`Size` cannot be asked as a form"),
    "union of models": (lambda: ANY.form("Which?", Meal | Drink), "A schema must be str, a model"),
    "class without fields": (lambda: elicit.form("Which?", Plain), "Plain cannot be asked"),
    "dict of types": (lambda: ANY.form("Which?", {"name": str}), "this is not JSON"),
    "name of a model": (lambda: ANY.form("Which?", "Meal"), "A schema must be str, a model"),
    "instance as schema": (
        lambda: ANY.form("Tags?", Tags(tags=[])),
        "A schema must be str, a model",
    ),
    "field named password": (lambda: elicit.form("Who?", Login), "elicit.secret"),
    "question for a password": (lambda: elicit.form("What is your password?"), "elicit.secret"),
    "fields by another name": (lambda: ANY.form("Meal?", fields=Meal), "'fields'"),
    "approver of a form": (lambda: ANY.form("Name?", approver="finance"), "'approver'"),
    "initial of another model": (
        lambda: ANY.form("Meal?", Meal, initial=Drink(name="tea")),
        "initial must be Meal or a dict, not Drink",
    ),
    "initial of another field": (
        lambda: ANY.form("Meal?", Meal, initial={"drink": "tea"}),
        "initial has the field 'drink'",
    ),
    "initial of another type": (
        lambda: ANY.form("Meal?", Meal, initial={"dish": 3}),
        "initial['dish'] is not valid",
    ),
    "check that is a lambda": (
        lambda: ANY.form("Meal?", Meal, check=lambda _: None),
        "a function at the top level of a module",
    ),
    "check with two parameters": (
        lambda: ANY.form("Meal?", Meal, check=with_two),
        "check=with_two must have one parameter",
    ),
    "check as text": (lambda: ANY.form("Meal?", Meal, check="check"), "must be a function or None"),
    "secret name with spaces": (lambda: elicit.secret("Key?", name="a key"), "1 to 64 letters"),
    "initial secret": (lambda: ANY.secret("Key?", initial="sesame"), "a secret is not shown again"),
}
QUESTIONS: Misuses = {
    "timeout in seconds": (lambda: ANY.confirm("Sure?", timeout=600), "timedelta(seconds=...)"),
    "timeout of 5,000 digits": (
        lambda: ANY.confirm("Sure?", timeout=pow(10, 5000)),
        "timeout must be a timedelta, not int",
    ),
    "timeout as text": (lambda: ANY.form("Name?", timeout="5m"), "timedelta(seconds=...)"),
    "timeout of None": (lambda: ANY.secret("Key?", timeout=None), "timedelta(seconds=...)"),
    "timeout of zero": (lambda: elicit.confirm("Sure?", timeout=timedelta()), "between 1 second"),
    "timeout of a year": (
        lambda: elicit.confirm("Sure?", timeout=timedelta(days=365)),
        "between 1 second",
    ),
    "empty message": (lambda: elicit.confirm(""), "The message is empty"),
    "blank message": (lambda: elicit.form("  "), "The message is empty"),
    "message as number": (lambda: ANY.confirm(3), "question must be str, not int"),
    "key as number": (lambda: ANY.form("Name?", key=3), "key must be str or None, not int"),
    "empty key": (lambda: ANY.form("Name?", key=""), "key must be a string that is not empty"),
    "id with a space": (lambda: ANY.form("Name?", elicitation_id="a b"), "elicitation_id must be"),
    "approver with spaces": (
        lambda: elicit.confirm("Sure?", approver="The boss"),
        "not a valid name",
    ),
    "approver misspelt": (
        lambda: elicit.confirm("Sure?", approver="fynance"),
        "[approvers.fynance] in elicit.toml is not set",
    ),
    "arguments that are no JSON": (
        lambda: elicit.confirm("Sure?", arguments={"order": {"lines": [1, object()]}}),
        "arguments['order']['lines'][1] is of the type object",
    ),
    "questions in a list": (
        lambda: ANY.together([elicit.confirm("Sure?")]),
        "together(*questions)",
    ),
    "no questions": (ANY.together, "at least one question"),
    "together with an outcome": (lambda: ANY.together("Sure?"), "together(*questions)"),
    "origins as text": (lambda: ANY.url("Sign in", str, origins=SITE), f"origins=[{SITE!r}]"),
    "builder without origins": (lambda: ANY.url("Sign in", str), "origins= is required"),
    "builder without a parameter": (lambda: builds(lambda: SITE), "a function of the link"),
    "builder that is async": (lambda: builds(text), "must not be async"),
    "builder that returns nothing": (lambda: builds(lambda _: None), "must return an address"),
    "builder that raises": (lambda: builds(lambda link: link[""]), "url= raised TypeError in line"),
    "builder of another origin": (lambda: builds(lambda _: "https://b.example"), "b.example"),
    "origin with a path": (lambda: ANY.url("Sign in", str, origins=[f"{SITE}/a"]), "without a p"),
    "address without https": (lambda: elicit.url("Sign in", "ftp://a.example"), "https"),
    "address of None": (lambda: ANY.url("Sign in", None), "url must be str or a function"),
    "gate of a text": (lambda: ANY.gate("Sure?"), "Write @gate or @gate(message=...)"),
    "gate inside a tool": (lambda: ANY.gate(len), "inside a tool asks nobody"),
    "need inside a tool": (
        lambda: ANY.needs(elicit.confirm("Sure?")),
        "inside a tool asks nobody",
    ),
    "gate with a message inside a tool": (
        lambda: ANY.gate(message="Delete?")(with_two),
        "inside a tool asks nobody",
    ),
    "need applied inside a tool": (lambda: NEEDS_SURE(text), "inside a tool asks nobody"),
    "need of a text": (lambda: ANY.needs("Sure?"), "needs(elicit.oauth(github))"),
    "skip_if without a parameter": (
        lambda: ANY.needs(elicit.confirm("Sure?"), skip_if=lambda: True),
        "skip_if must be a function that takes 1 argument",
    ),
    "on_complete without parameters": (
        lambda: ANY.needs(elicit.confirm("A?"), elicit.confirm("B?"), on_complete=lambda: None),
        "on_complete must be a function that takes 2 arguments",
    ),
    "unknown argument": (lambda: ANY.confirm("Sure?", tilmeout=3), "'tilmeout'"),
    "unknown verb": (lambda: ANY.pay(PRICE), "Perhaps elicit.payment is meant"),
}
WORK: Misuses = {
    "once without a name": (lambda: elicit.once("", lambda: 1), "unique within the tool"),
    "once without work": (lambda: ANY.once("work"), "'work'"),
    "once twice": (twice, "key="),
    "once twice in gather": (twice_in_gather, "key="),
    "work yields": (lambda: ANY.once("work", yields), "contains `yield`"),
    "work returns another type": (
        lambda: ANY.once("work", lambda: "7", returns=dict[str, int]),
        "not dict[str, int], the type that work should return",
    ),
    "key of once with 5,000 digits": (
        lambda: ANY.once("work", lambda: 1, key=10**5000),
        "key is a number with too many digits",
    ),
    "key of once as float": (lambda: ANY.once("work", lambda: 1, key=1.5), "key must be str"),
    "work is a result": (lambda: ANY.once("work", {"id": 1}), "without calling it"),
    "work is None": (lambda: ANY.once("work", None), "without calling it"),
    "work with two arguments": (lambda: ANY.once("work", with_two), "more than one argument"),
    "completion with a date": (
        lambda: ANY.complete_elicitation("a", {"at": [time()]}),
        "content['at'][0] is of the type time",
    ),
    "work returns a set": (lambda: ANY.once("work", lambda: {1}), "it is not JSON"),
    "end without a key": (lambda: ANY.on_end(release), "'key'"),
    "end with a key of 5,000 digits": (
        lambda: ANY.on_end(release, key=-(10**5000)),
        "key is a number with too many digits",
    ),
    "end with a payload of 5,000 digits": (
        lambda: ANY.on_end(release, {"seats": [10**5000]}, key="a"),
        "payload['seats'][0] is a number with too many digits",
    ),
    "end with a payload for 5,000 digits": (
        lambda: ANY.on_end(release, {10**5000: 1}, key="a"),
        "payload has a key that is a number with too many digits",
    ),
    "end with a lambda": (lambda: ANY.on_end(lambda _: None, key="a"), "on_end(release_seat"),
    "end with None": (lambda: ANY.on_end(None, key="a"), "callback must be a function"),
    "end with two parameters": (lambda: ANY.on_end(with_two, key="a"), "must take one argument"),
    "end with an object": (
        lambda: ANY.on_end(release, {"seat": ANY}, key="a"),
        "payload['seat'] is of the type module",
    ),
    "mode misspelt": (lambda: ANY.can("urls"), "form or url"),
    "mode of capabilities misspelt": (lambda: supports_elicitation({}, "urls"), "form or url"),
    "context as capabilities": (lambda: supports_elicitation(3), "ctx.session.client_capabilities"),
    "notice without a text": (lambda: elicit.notify(" "), "1 to 2000 characters"),
    "completion of a number": (lambda: ANY.complete_elicitation(3), "the id of an elicitation"),
}
MARKED: Misuses = {
    "work with a gate": (lambda: ANY.once("work", gated), "work is marked with gate or needs"),
    "work with needs": (lambda: ANY.once("work", needing), "so nobody is asked"),
    "partial work with a gate": (
        lambda: ANY.once("work", partial(gated, None)),
        "work is marked with gate or needs",
    ),
    "end with a gate": (lambda: ANY.on_end(gated, key="a"), "gated is marked with gate or needs"),
    "check with a gate": (
        lambda: ANY.form("Meal?", Meal, check=gated),
        "check=gated is marked with gate or needs",
    ),
    "skip_if with a gate": (
        lambda: ANY.needs(elicit.confirm("A?"), skip_if=gated),
        "skip_if is marked with gate or needs",
    ),
    "on_complete with needs": (
        lambda: ANY.needs(elicit.confirm("A?"), on_complete=needing),
        "on_complete is marked with gate or needs",
    ),
    "skip_if yields": (
        lambda: ANY.needs(elicit.confirm("A?"), skip_if=lambda _: (yield)),
        "skip_if contains `yield`",
    ),
    "builder with a gate": (lambda: builds(gated), "of url= is marked with gate or needs"),
}
LOOPS: Misuses = {
    "question in another loop": (lambda: in_thread(asked), "awaited in another event loop"),
    "once in another loop": (lambda: in_thread(done_once), "awaited in another event loop"),
}
GROUPS = {
    "forgotten await": FORGOTTEN_AWAIT,
    "accounts": ACCOUNTS,
    "payments": PAYMENTS,
    "forms": FORMS,
    "questions": QUESTIONS,
    "work": WORK,
    "marked": MARKED,
    "loops": LOOPS,
}
# The codes that blame the author, or the operator for a name that no setting declares.
AUTHORS = {
    f"ELICITATION_{name}"
    for name in (
        *("INVALID_USE", "INVALID_SCHEMA", "NOT_AWAITED", "NOT_ASKED"),
        *("NOT_CONFIGURED", "RESULT_NOT_KEPT"),
    )
}


@pytest.mark.diagonal
@pytest.mark.parametrize("group", GROUPS)
async def test_misuse_is_answered_with_the_line_and_what_to_write(server, revision, group):
    # finding: XA7
    # finding: XA12
    # finding: XA13
    # finding: XA15
    @server.tool()
    async def ask(misuse: str) -> str:
        found = GROUPS[group][misuse][0]()
        return str(await found if isinstance(found, Awaitable) else found)

    received: dict[str, tuple[str, str | None]] = {}
    async with caller_of(server, revision) as (_, caller):
        for misuse, (_act, words) in GROUPS[group].items():
            result = await caller.result("ask", misuse=misuse)
            text, code = text_of(result), (result.meta or {}).get("code")
            is_right = words in text and f"{Path(__file__).name}:" in text
            is_right = is_right and "Error executing" not in text and "INVALID_INPUT" not in text
            if not (result.is_error and is_right and code in AUTHORS):
                received[misuse] = text, code
    assert received == {}


# Questions that differ each time the body starts, each with the name of the part that differs.
CHANGED: dict[str, tuple[Callable[[int], Question[Any]], str]] = {
    "message": (lambda n: elicit.confirm(f"Pay {n}?"), "'Pay 2?' where it had asked 'Pay 1?'"),
    "argument": (
        lambda n: elicit.confirm("Pay?", arguments={"to": "Ada", "at": n}),
        "'Pay?' again, but arguments['at'] differed",
    ),
    "initial value": (
        lambda n: elicit.form("Meal?", Meal, initial={"dish": str(n)}),
        "'Meal?' again, but initial['dish'] differed",
    ),
    "schema": (
        lambda n: elicit.form("Meal?", {"type": "object", "properties": {f"f{n}": STRING}}),
        "'Meal?' again, but the schema differed",
    ),
    "check": (
        lambda n: elicit.form("Meal?", Meal, check=check if n == 1 else check_again),
        "'Meal?' again, but check differed",
    ),
    "key of a secret": (
        lambda n: elicit.secret("Key?", name=f"key_{n}"),
        "'Key?' again, but its details differed",
    ),
}


@pytest.mark.parametrize("part", CHANGED)
async def test_question_that_differs_after_restart_names_its_line_and_part(library, part):
    server, starts = new_server(library), iter(range(1, 3))

    @server.tool()
    async def ask() -> str:
        return str(await CHANGED[part][0](next(starts)))

    async with caller_of(server, MODERN) as (_, caller):
        first = await caller.asked("ask")
        result = await caller.answered("ask", after=first)
        assert CHANGED[part][1] in text_of(result)
        assert f"The code is at {Path(__file__).name}:" in text_of(result)
        assert (result.meta or {}).get("code") == "ELICITATION_QUESTION_CHANGED"


# Marks with names that no setting declares.
MISSPELT: dict[str, Callable[[], Any]] = {
    "approver of a gate": lambda: elicit.gate(approver="unlisted"),
    "approver of a need": lambda: elicit.needs(elicit.confirm("Sure?", approver="unlisted")),
    "provider of a need": lambda: elicit.needs(elicit.oauth("unlisted")),
    "seller of a need": lambda: elicit.needs(elicit.payment(PRICE, "It", provider="unlisted")),
}


@pytest.mark.parametrize("mark", MISSPELT)
async def test_misspelt_name_in_a_mark_names_the_line_of_the_mark(server, revision, mark):
    @server.tool()
    @MISSPELT[mark]()
    async def marked() -> str:
        return "done"

    async with caller_of(server, revision) as (_, caller):
        result = await caller.result("marked")
        assert "[" in (text := text_of(result))
        assert f"The code is at {Path(__file__).name}:" in text
        assert (result.meta or {}).get("code") == "ELICITATION_NOT_CONFIGURED"


async def test_amount_that_the_model_chose_is_not_the_authors_mistake(server, revision):
    @server.tool()
    async def pay(amount: str) -> str:
        return str(Money(amount, "EUR"))

    async with caller_of(server, revision) as (_, caller):
        result = await caller.result("pay", amount="9,00")
        assert (result.meta or {}).get("code") == "INVALID_INPUT"


async def test_verb_of_a_task_that_has_just_been_created_is_not_forgotten(server, revision):
    @server.tool()
    async def work() -> str:
        doing = asyncio.create_task(elicit.once("work", lambda: "done"))
        asyncio.get_running_loop().call_soon(doing.cancel)
        return "started"

    async with caller_of(server, revision) as (_, caller):
        assert text_of(await caller.result("work")) == "started"


async def test_work_that_is_exempt_from_gates_runs(server, revision):
    @server.tool()
    async def work() -> str:
        return str(await elicit.once("work", opened))

    async with caller_of(server, revision) as (_, caller):
        assert text_of(await caller.result("work")) == "1"


async def test_error_in_skip_if_names_its_line(server, revision):
    @server.tool()
    @elicit.needs(elicit.confirm("Sure?"), skip_if=lambda given: bool(given["nothing"]))
    async def marked() -> str:
        return "done"

    async with caller_of(server, revision) as (_, caller):
        text = await caller.text("marked")
        assert "could not start: its skip_if raised KeyError" in text
        assert f"This is a bug in the code at {Path(__file__).name}:" in text


async def test_misuse_is_logged_for_the_author(server, revision, caplog):
    @server.tool()
    async def ask() -> str:
        return str(await ANY.confirm(""))

    async with caller_of(server, revision) as (_, caller):
        await caller.result("ask")
    (record,) = [one for one in caplog.records if one.message == "tool.misused_verb"]
    logged = vars(record)
    assert (logged["tool"], logged["code"]) == ("ask", "ELICITATION_INVALID_USE")
    assert f"{Path(__file__).name}:" in logged["why"]


async def test_disputed_payment_names_the_line_of_the_tool_in_a_test(server, revision):
    @server.tool()
    async def buy() -> str:
        paid = await elicit.payment(PRICE, "A report")
        return f"{await elicit.form('Name?')} {paid.id}"

    async def test() -> None:
        async with elicit_person(server, revision=protocol(revision), declares=()) as person:
            person.pays()
            person.leaves_open()
            await person.call("buy")
            await person.webhooks.report_dispute((await person.payments())[0])
            assert (await person.call("buy")).text == ""

    with pytest.raises(AssertionError) as failed:
        await test()
    assert f"The tool raised Failed at {__file__}:" in failed.value.__notes__[0]


@pytest.mark.parametrize("kind", ["prompt", "resource"])
async def test_verb_in_a_prompt_or_a_resource_is_explained_with_its_line(server, revision, kind):
    uses: dict[str, Callable[[], Any]] = {
        "Nobody can be asked here": lambda: elicit.confirm("Sure?"),
        "The message is empty": lambda: ANY.confirm(""),
        "scopes is a list": lambda: ANY.oauth("github", scopes="repo"),
        "no tool call": lambda: elicit.once("work", lambda: 1),
        "no `asking` block": lambda: asyncio.sleep(0, [elicit.confirm("Sure?")][1:]),
        "the server's own run": lambda: asyncio.sleep(0, unawaited()),
    }

    @server.prompt()
    async def prompt(words: str) -> str:
        return str(await uses[words]())

    @server.resource("misuse://{words}")
    async def resource(words: str) -> str:
        return str(await uses[unquote(words)]())

    reads: dict[str, Callable[[Any, str], Any]] = {
        "prompt": lambda client, words: client.get_prompt("prompt", {"words": words}),
        "resource": lambda client, words: client.read_resource(f"misuse://{quote(words)}"),
    }
    async with elicit_person(server, revision=protocol(revision)) as person:
        for words in uses:
            with pytest.raises(MCPError) as failed:
                await reads[kind](person.client, words)
            assert words in failed.value.message
            assert f"The code is at {Path(__file__).name}:" in failed.value.message


@pytest.mark.parametrize("kind", ["chained", "raised"])
async def test_error_that_a_resource_raises_itself_is_not_replaced(library, kind):
    server = new_server(library)

    @server.resource("report://all")
    async def report() -> str:
        try:
            return str(await elicit.confirm("Sure?"))
        except ElicitError as error:
            raise MCPError(-32000, "Sorry") from (error if kind == "chained" else None)

    async with elicit_person(server) as person:
        with pytest.raises(MCPError, match=r"Sorry|report://all") as failed:
            await person.client.read_resource("report://all")
        assert "Nobody can be asked" not in failed.value.message


@pytest.mark.parametrize("wrong", [pytest, "shop:mcp", str, 3, None, lambda: None])
async def test_object_that_is_no_server_is_refused(wrong):
    with pytest.raises(TypeError, match="is not an MCPServer, a FastMCP server or"):
        async with elicit_person(wrong):
            pass


async def test_module_of_a_server_is_refused_with_the_name_of_the_server(library):
    shop = ModuleType("shop")
    vars(shop)["mcp"] = new_server(library)
    with pytest.raises(TypeError, match=r"the module shop is not .* Pass shop\.mcp\."):
        async with elicit_person(shop):
            pass


def test_name_that_is_no_verb_is_no_attribute():
    assert not hasattr(elicit, "pay")
    with pytest.raises(AttributeError, match=r"Perhaps elicit\.payment is meant\.$") as raised:
        _ = ANY.pay
    assert (type(raised.value), raised.value.name) == (AttributeError, "pay")


async def test_builder_that_reaches_no_service_fails_without_blame(server, revision):
    def build(_: object) -> str:
        raise ConnectionRefusedError

    @server.tool()
    async def visit() -> str:
        return str(await elicit.url("Sign in", build, origins=[SITE]))

    async with caller_of(server, revision) as (_, caller):
        result = await caller.result("visit")
        assert "url= raised ConnectionRefusedError in line" in text_of(result)
        assert (result.meta or {}).get("code") == "ELICITATION_FAILED"


@pytest.mark.parametrize("value", [receipt(), account(), PRICE, OUTCOME])
def test_wrong_use_of_a_value_outside_a_tool_is_an_ordinary_exception(value):
    assert not hasattr(value, "nothing")
    with pytest.raises(AttributeError, match=r"There is no .*nothing") as raised:
        _ = value.nothing
    assert (type(raised.value), raised.value.name) == (AttributeError, "nothing")
    with pytest.raises(TypeError, match="is not a dict") as wrong:
        _ = value["nothing"]
    assert type(wrong.value) is TypeError


def test_misuse_outside_a_tool_is_an_ordinary_exception():
    with pytest.raises(InvalidQuestion, match="The message is empty") as raised:
        ANY.confirm("")
    assert raised.value.name == "INVALID_INPUT"
    assert "bug" not in str(raised.value)
