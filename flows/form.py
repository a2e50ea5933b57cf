"""The kinds `form` and `confirm`: what a person answers in the client's own form, or on our page.

What could go wrong: a password asked for in a form, which passes through the client and the model.
Such a field is refused here, where the question is written; `secret` asks for it.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar, cast, overload

from msgspec import Struct

from flows.elicitation import Json
from flows.errors import InvalidQuestion, NotAccepted
from flows.question import DEFAULT_TIMEOUT, Question
from flows.schema import Field, Schema, schema_of

T = TypeVar("T")
FORM_KINDS: Final = frozenset({"form", "confirm", "gate"})  # what a client's form mode can ask
ARGUMENTS_BYTES_AT_MOST: Final = 16 * 1024
# Words of a name or a title, in small letters and without digits: "user password", "cvv".
# A one-time code is none of these: it is worth nothing by the time anybody else reads it.
_SECRET_WORDS = re.compile(
    r"(?<!one time )"
    r"(?:\w*(?:password|passwd|passphrase|passcode)\w*\b|\bpass (?:word|phrase|code)s?\b"
    r"|\w*pwds?\b|\bpin(?:code|number)?s?\b|\w*secrets?\b|\b(?:cvc|cvv)s?\b|\w*credentials?\b"
    r"|\b\w*card ?numbers?\b|\b(?:seed|recovery|mnemonic) ?phrases?\b"
    r"|(?:api|private|secret|access|ssh|signing|encryption) ?keys?\b(?! id\b)"
    r"|(?P<text>(?<!max )(?<!min )(?<!maximum )(?<!minimum )(?<!many )(?<!number of )"
    r"\b\w*tokens?\b))"
    # What is about a secret and is none.
    r"(?! (?:count|length|limit|budget|usage|amount|price|supply|symbol|name|title|type|kind|format"
    r"|policy|strength|hint|manager|age|ttl|lifetime|expiry|expiration|expires|url|uri|endpoint"
    r"|location|color|santa|question|ingredient)s?\b)"
)
_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[\W\d_]+")
# What the protocol's own forms know; the rest is checked when the answer is here.
_WIRE_FORMATS = frozenset({"email", "uri", "date", "date-time"})
_OURS_ONLY = frozenset({"pattern", "writeOnly", "uniqueItems"})


class Terms(Struct, frozen=True, kw_only=True):
    """What the record holds of the question: its JSON Schema, and what a yes is about."""

    schema: Json
    arguments: Json = None
    covers: str | None = None
    can_be_kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A request for the fields of a schema; without fields, for a yes.

    `arguments` are shown to whoever answers. Of a gate, `covers` is the digest of all that the
    tool was called with, and `can_be_kept` says whether a yes is good for later calls.
    """

    message: str
    schema: Schema[Any]
    arguments: Mapping[str, Json] | None = None
    covers: str | None = None
    can_be_kept: bool = False

    @property
    def kind(self) -> str:
        if self.schema.fields:
            return "form"
        return "confirm" if self.covers is None else "gate"

    @property
    def terms(self) -> Terms:
        return Terms(
            schema=self.schema.json,
            arguments=self.arguments,
            covers=self.covers,
            can_be_kept=self.can_be_kept,
        )

    def facts(self) -> Json:
        return {
            "message": self.message,
            "schema": self.schema.json,
            "arguments": self.arguments,
            "covers": self.covers,
        }


@overload
def form_question(
    message: str,
    schema: type[str] = str,
    *,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[str]: ...
@overload
def form_question(
    message: str,
    schema: type[T],
    *,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[T]: ...
@overload
def form_question(
    message: str,
    schema: Mapping[str, Json],
    *,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Mapping[str, Json]]: ...
def form_question(
    message: str,
    schema: type[Any] | Mapping[str, Json] = str,
    *,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Any]:
    """Ask for the fields of a schema.

    Raises InvalidQuestion for a schema that no form can show, or that asks for a secret.
    """
    asked = _asked(schema)
    for field in asked.fields:
        if field.is_secret or _asks_for_a_secret(field):
            raise InvalidQuestion(
                f"The field {field.name!r} looks like a secret, and what is typed into a form "
                "passes through the client and the model: ask for it with elicit.secret."
            )
    return Question(
        message=message,
        request=Form(message=message, schema=asked),
        answer=asked.typed,
        key=key,
        timeout=timeout,
    )


def confirm_question(
    question: str,
    *,
    arguments: Mapping[str, Json] | None = None,
    key: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[bool]:
    """Ask for a yes; every no is False. Raises InvalidQuestion if the arguments are no JSON."""
    return Question(
        message=question,
        request=Form(
            message=question,
            schema=schema_of({"type": "object", "properties": {}}),
            arguments=None if arguments is None else _checked(arguments),
        ),
        answer=_yes,
        no=_no,
        key=key,
        timeout=timeout,
    )


def on_the_wire(schema: Mapping[str, Json]) -> dict[str, Any]:
    """The schema in the words of the protocol's forms, which know fewer.

    Source: ElicitRequestFormParams of the 2025-11-25 and 2026-07-28 schemas.
    """
    properties = cast("Mapping[str, Mapping[str, Json]]", schema.get("properties", {}))
    shown = {name: _wire_property(value) for name, value in properties.items()}
    return {**schema, "properties": shown}


def _asked(schema: type[Any] | Mapping[str, Json]) -> Schema[Any]:
    if schema is not str:
        found: Schema[Any] = schema_of(schema)
        if not found.fields:
            raise InvalidQuestion("The schema has no fields: elicit.confirm asks for a yes.")
        return found
    one = {"type": "string", "title": "Your answer"}
    asked: Schema[Any] = schema_of(
        {"type": "object", "properties": {"response": one}, "required": ["response"]}
    )
    return replace(asked, typed=_response)


def _asks_for_a_secret(field: Field) -> bool:
    """By its name and its title. What is chosen or ticked is no secret, and no number a token."""
    if field.kind not in ("string", "number", "integer"):
        return False
    name, title = (_BORDER.sub(" ", text) for text in (field.name, field.title))
    # A title that was made from the name has lost the borders of its words.
    is_made = title.replace(" ", "").lower() == name.replace(" ", "").lower()
    return any(
        field.kind == "string" or found["text"] is None
        for words in ([name] if is_made else [name, title])
        for found in _SECRET_WORDS.finditer(words.lower())
    )


def _checked(arguments: Mapping[str, Json]) -> Mapping[str, Json]:
    try:
        text = json.dumps(arguments, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidQuestion(f"The arguments are no JSON: {type(error).__name__}.") from error
    if size > ARGUMENTS_BYTES_AT_MOST:
        raise InvalidQuestion(
            f"The arguments have {size} bytes, {ARGUMENTS_BYTES_AT_MOST} at most."
        )
    kept: Mapping[str, Json] = json.loads(text)
    return kept


def _wire_property(asked: Mapping[str, Json]) -> dict[str, Json]:
    shown = {
        key: value
        for key, value in asked.items()
        if key not in _OURS_ONLY and not key.startswith("x-")
    }
    if shown.get("format", "date") not in _WIRE_FORMATS:
        del shown["format"]
    if "anyOf" in shown:  # of one, the protocol spells it oneOf; of several, anyOf
        shown["oneOf"] = shown.pop("anyOf")
    items = shown.get("items")
    if isinstance(items, Mapping) and "oneOf" in items:
        others = {key: value for key, value in items.items() if key not in ("oneOf", "type")}
        shown["items"] = {**others, "anyOf": items["oneOf"]}
    elif isinstance(items, Mapping) and "anyOf" in items:
        shown["items"] = {key: value for key, value in items.items() if key != "type"}
    return shown


def _response(content: Json) -> str:
    return str(cast("Mapping[str, Json]", content)["response"])


def _yes(_: Json) -> bool:
    return True


def _no(_: NotAccepted) -> bool:
    return False
