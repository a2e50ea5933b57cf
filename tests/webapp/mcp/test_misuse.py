"""Wrong uses of the verbs in a tool: the error names the tool's line and says what to write."""

from collections.abc import Awaitable, Callable
from datetime import time, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from flows import InvalidQuestion, Money, elicit
from flows.payments.receipt import Receipt
from tests.support.checkouts import payment
from tests.support.mcp_server import caller_of, text_of

ANY: Any = elicit  # misuses are errors for type checkers too
PRICE = Money("9.00", "EUR")


class Tags(BaseModel):
    tags: list[str]


class Alarm(BaseModel):
    at: time


def receipt() -> Any:

    return Receipt(payment(), resources=ANY)


async def twice() -> Any:
    await elicit.once("work", lambda: 1)
    return await elicit.once("work", lambda: 1)


# A misuse of each kind, and words of the sentence that the author needs.
MISUSES: dict[str, tuple[Callable[[], Any], str]] = {
    "scopes as text": (lambda: ANY.oauth("github", scopes="repo"), "scopes=['repo']"),
    "scopes by position": (lambda: ANY.oauth("github", ["repo"]), "scopes=..."),
    "provider as number": (lambda: ANY.oauth(7), "provider must be Provider or str, not int"),
    "float amount": (lambda: ANY.payment(Money(9.0, "EUR"), "A report"), "a float is not exact"),  # type: ignore[arg-type]
    "amount with its currency": (lambda: Money("9.00 EUR"), "'currency'"),  # type: ignore[call-arg]
    "price as text": (lambda: ANY.payment("9.00", "A report"), "price must be Money, not str"),
    "payment for nothing": (lambda: ANY.payment(PRICE), "'what'"),
    "processing misspelt": (
        lambda: ANY.payment(PRICE, "A report", processing="later"),
        "processing must be 'wait' or 'return'",
    ),
    "timeout in seconds": (lambda: ANY.confirm("Sure?", timeout=600), "timedelta(seconds=...)"),
    "timeout of zero": (lambda: elicit.confirm("Sure?", timeout=timedelta()), "between 1 second"),
    "origins as text": (
        lambda: ANY.url("Sign in", str, origins="https://a.example"),
        "origins=['https://a.example']",
    ),
    "builder without origins": (lambda: ANY.url("Sign in", str), "origins= is required"),
    "address without https": (lambda: elicit.url("Sign in", "ftp://a.example"), "https"),
    "questions in a list": (
        lambda: ANY.together([elicit.confirm("Sure?")]),
        "together(*questions)",
    ),
    "no questions": (ANY.together, "at least one question"),
    "empty message": (lambda: elicit.confirm(""), "The message is empty"),
    "message as number": (lambda: ANY.confirm(3), "question must be str, not int"),
    "field named password": (
        lambda: elicit.form(
            "Who?", {"type": "object", "properties": {"password": {"type": "string"}}}
        ),
        "elicit.secret",
    ),
    "key as number": (lambda: ANY.form("Name?", key=3), "key must be str or None, not int"),
    "approver of a form": (lambda: ANY.form("Name?", approver="finance"), "'approver'"),
    "approver with spaces": (
        lambda: elicit.confirm("Sure?", approver="The boss"),
        "not a valid name",
    ),
    "list of texts": (lambda: elicit.form("Tags?", Tags), "Tags.tags: `list[str]`"),
    "time": (lambda: elicit.form("When?", Alarm), "Alarm.at: `time`"),
    "number as schema": (lambda: elicit.form("How many?", int), "Use a model with one field"),
    "instance as schema": (lambda: ANY.form("Tags?", Tags(tags=[])), "an instance of Tags"),
    "secret name with spaces": (lambda: elicit.secret("Key?", name="a key"), "1 to 64 letters"),
    "once without a name": (lambda: elicit.once("", lambda: 1), "unique within the tool"),
    "once twice": (twice, "key="),
    "key of once as float": (lambda: ANY.once("work", lambda: 1, key=1.5), "key must be str"),
    "work is a result": (lambda: ANY.once("work", {"id": 1}), "without calling it"),
    "work with two arguments": (lambda: ANY.once("work", divmod), "more than one argument"),
    "mode misspelt": (lambda: ANY.can("urls"), "form or url"),
    "notice without a text": (lambda: elicit.notify(" "), "1 to 2000 characters"),
    "refund by position": (lambda: receipt().refund(3.0), "refund(reason=...)"),
    "unknown verb's argument": (lambda: ANY.confirm("Sure?", tilmeout=3), "'tilmeout'"),
}


async def test_misuse_is_answered_with_the_line_and_what_to_write(server, revision):
    # finding: XA7
    # finding: XA13
    # finding: XA15
    @server.tool()
    async def ask(misuse: str) -> str:
        found = MISUSES[misuse][0]()
        return str(await found if isinstance(found, Awaitable) else found)

    heard: dict[str, tuple[str, bool]] = {}
    async with caller_of(server, revision) as (_, caller):
        for misuse, (_act, words) in MISUSES.items():
            result = await caller.result("ask", misuse=misuse)
            text, code = text_of(result), (result.meta or {}).get("code")
            is_right = words in text and f"{Path(__file__).name}:" in text
            is_coded = code in ("ELICITATION_INVALID_USE", "ELICITATION_INVALID_SCHEMA")
            if not (result.is_error and is_right and is_coded) or "Error executing" in text:
                heard[misuse] = text, is_coded
    assert heard == {}


def test_misuse_outside_a_tool_is_an_ordinary_exception():
    with pytest.raises(InvalidQuestion, match="The message is empty") as raised:
        ANY.confirm("")
    assert raised.value.name == "INVALID_INPUT"
    assert "bug" not in str(raised.value)
