"""The kinds `form` and `confirm`: answered in the client's own form or on our page.

Risks: a form asks for a password, which would pass through the client and the model. Fields that
look secret are rejected when the question is created; use `secret` for them. For a form with a
single text field, the question itself is checked instead of a field name.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, TypeVar, cast, overload

from msgspec import Struct

from flows.elicitation.states import Elicitation, Json
from flows.elicitation.tool_call import DescribedTool
from flows.elicitation.traits import traits_of
from flows.elicitation.voting import Voting, voting_in
from flows.errors import InvalidQuestion, NotAccepted
from flows.kinds.checking import AnyCheck, CheckOf, must_be_check, name_of, with_initial
from flows.oauth.provider import NAME
from flows.question import DEFAULT_TIMEOUT, Question, verb
from flows.schema.fields import asks_for_a_secret, looks_secret
from flows.schema.schema import ONE_TEXT, Schema, schema_of
from flows.shown import json_text, must_be_flat, must_be_shown

T = TypeVar("T")
ARGUMENTS_BYTES_AT_MOST: Final = 16 * 1024
DECIDED_WITHIN: Final = timedelta(days=1)
_PASSES: Final = (
    "the client and the model see what a person types into a form, so ask for it with "
    "elicit.secret."
)
# The formats that the protocol's forms support; the rest is checked when the answer arrives.
_WIRE_FORMATS = frozenset({"email", "uri", "date", "date-time"})
_ONLY_HERE = frozenset({"pattern", "writeOnly", "uniqueItems"})


class FormTerms(Struct, frozen=True, kw_only=True):
    """The stored terms: the JSON Schema, and the arguments that the person approves."""

    schema: Json
    arguments: Json = None
    covers: str | None = None
    can_be_kept: bool = False
    has_rules: bool = False  # validators or a check, in addition to the schema
    # The names by which a process finds the author's check and model, see `checking`.
    check: str | None = None
    model: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A request for the fields of a schema, or for an approval if there are no fields.

    `arguments` are shown to the person. For a gate, `covers` is the digest of everything that the
    tool was called with, and `can_be_stored` says if an approval counts for later calls. `approver`
    decides instead of the person who asked. `described` is the tool behind a gate. `check` is the
    author's function that checks an answer, and `model` is the type of that answer.
    """

    message: str
    schema: Schema[Any]
    arguments: Mapping[str, Json] | None = None
    covers: str | None = None
    can_be_stored: bool = False
    approver: str | None = None
    described: DescribedTool | None = None
    check: AnyCheck | None = None
    model: object = None

    def __post_init__(self) -> None:
        if self.arguments:
            must_be_shown(self.arguments)

    @property
    def kind(self) -> str:
        if self.approver is not None:
            return "decision"
        if self.schema.fields:
            return "form"
        return "confirm" if self.covers is None else "gate"

    @property
    def terms(self) -> FormTerms:
        return FormTerms(
            schema=self.schema.json,
            arguments=self.arguments,
            covers=self.covers,
            can_be_kept=self.can_be_stored,
            has_rules=self.schema.has_rules or self.check is not None,
            check=name_of(self.check),
            model=name_of(self.model),
        )

    def facts(self) -> Json:
        return {
            "message": self.message,
            "schema": self.schema.json,
            "arguments": self.arguments,
            "covers": self.covers,
            **({} if self.approver is None else {"approver": self.approver}),
            **({} if self.check is None else {"check": name_of(self.check)}),
        }


@overload
def form(
    message: str,
    schema: type[T],
    *,
    initial: T | Mapping[str, object] | None = None,
    check: CheckOf[T] | None = None,
    key: str | None = None,
    elicitation_id: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[T]: ...
@overload
def form(
    message: str,
    schema: Mapping[str, Json],
    *,
    initial: Mapping[str, object] | None = None,
    check: CheckOf[Mapping[str, Json]] | None = None,
    key: str | None = None,
    elicitation_id: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Mapping[str, Json]]: ...
@overload
def form(
    message: str,
    *,
    initial: str | None = None,
    check: CheckOf[str] | None = None,
    key: str | None = None,
    elicitation_id: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[str]: ...
@verb
def form(
    message: str,
    schema: type[Any] | Mapping[str, Json] = str,
    *,
    initial: Any = None,
    check: AnyCheck | None = None,
    key: str | None = None,
    elicitation_id: str | None = None,
    timeout: timedelta = DEFAULT_TIMEOUT,
) -> Question[Any]:
    """Ask for something that the client and the model may see, in the client's form or on our page.

    Args:
        message: The question, as the person reads it.
        schema: `str` for one text. Otherwise a pydantic model, a dataclass, a TypedDict or a JSON
            Schema of one flat object: texts, numbers, booleans and choices.
        initial: The values that the fields begin with: a dict with some of the fields, or an
            instance of the model. A text if `schema` is `str`.
        check: A function at the top level of a module, async or not. It receives the answer, in the
            type of `schema`, before the answer is accepted. It returns None if the answer is valid,
            and otherwise a dict of field names and error messages, with "" for the whole form.
            The person sees the errors next to the fields, and the typed values stay. The check
            has 10 seconds. It may run more than once for an answer, and in another process.
        key: As for `url`.
        elicitation_id: An id of your own, with which trusted code may answer.
        timeout: As for `url`.

    Returns:
        The question. Awaiting it returns the answer in the type of `schema`.

    Raises:
        InvalidQuestion: A form cannot ask for `schema`, or `schema` or the message asks for a
            secret. `initial` is not valid for the fields. `check` is not a function at the top
            level of a module. In a tool, the error is InvalidUse and names the line.
        InvalidAnswer: The await raises it if the client's answer does not match the schema. With
            `check`, the client's form is shown again first, up to five times.
    """
    asked = _asked(schema)
    _must_not_ask_for_secrets(message, asked, is_one_text=schema is str)
    must_be_check(check, schema)
    return Question(
        message=message,
        request=Form(
            message=message,
            schema=with_initial(asked, schema, initial),
            check=check,
            model=schema,
        ),
        answer=asked.typed,
        key=key,
        elicitation_id=elicitation_id,
        timeout=timeout,
    )


@verb
def confirm(
    question: str,
    *,
    arguments: Mapping[str, object] | None = None,
    approver: str | None = None,
    key: str | None = None,
    timeout: timedelta | None = None,
) -> Question[bool]:
    """Ask for an approval.

    Args:
        question: The question, as the person reads it.
        arguments: The details of the action to approve, as JSON. The person reads them.
        approver: The name of a group in the operator's settings. Its people decide instead of the
            caller. Approvers may need days. The call ends before that, and repeating the same call
            resumes it.
        key: As for `url`.
        timeout: As for `url`. With `approver`, a day by default.

    Returns:
        The question. Awaiting it returns True or False; `outcome()` has the reason. The result is
        also False if this caller or this client cannot be asked.

    Raises:
        InvalidQuestion: The arguments are not JSON, or the name of the approver is not valid. In a
            tool, the error is InvalidUse and names the line.
        NotConfigured: The await raises it if the settings have no such approver.
        TooManyPending: The await raises it if the person has too many open questions.
        NoAsker: The await raises it outside of a tool.
    """
    return Question(
        message=question,
        request=Form(
            message=question,
            schema=schema_of({"type": "object", "properties": {}}),
            arguments=None if arguments is None else _checked(arguments),
            approver=must_be_approver(approver),
        ),
        answer=_yes,
        no=_no,
        key=key,
        timeout=timeout_for(approver, given=timeout),
    )


def approver_of(asked: Elicitation) -> str | None:
    """Return the name of the approver who decides, or None if the person who asked decides."""
    voting = voting_of(asked)
    return None if voting is None else voting.approver


def voting_of(asked: Elicitation) -> Voting | None:
    """Return the approvers and their votes, or None if the person who asked decides."""
    return voting_in(asked.request.terms) if traits_of(asked.kind).is_anothers else None


def asker_of(asked: Elicitation) -> str | None:
    """Return the description of the asker for the approver."""
    terms = asked.request.terms
    if not traits_of(asked.kind).is_anothers or not isinstance(terms, Mapping):
        return None
    return cast("str | None", terms.get("asker"))


def changed_part(before: Elicitation, request: object) -> str | None:
    """Return the name of the part of a form that differs from an earlier question, or None."""
    was = before.request.terms
    if not isinstance(request, Form) or before.kind != request.kind or not isinstance(was, Mapping):
        return None
    terms = request.terms
    if name := _changed_key(was.get("arguments"), terms.arguments):
        return f"arguments[{name!r}]"
    if was.get("check") != terms.check:
        return "check"
    fields, now = (
        {name: {**field, "default": None} for name, field in _properties(schema).items()}
        for schema in (was.get("schema"), terms.schema)
    )
    if was.get("schema") == terms.schema:
        return None
    name = _changed_key(_properties(was.get("schema")), _properties(terms.schema))
    return f"initial[{name!r}]" if fields == now else "the schema"


def _properties(schema: Json) -> dict[str, dict[str, Json]]:
    return cast("Any", schema)["properties"] if isinstance(schema, Mapping) else {}


def _changed_key(before: Json | Mapping[str, Any], now: Json | Mapping[str, Any]) -> str | None:
    """Return the first key whose value differs."""
    was, is_now = (dict(one) if isinstance(one, Mapping) else {} for one in (before, now))
    return next((key for key in {**was, **is_now} if was.get(key) != is_now.get(key)), None)


def must_be_approver(name: str | None) -> str | None:
    """Return the name. Raises InvalidQuestion if it is not a valid approver name."""
    if name is not None and not NAME.fullmatch(name):
        raise InvalidQuestion(
            f"approver={name!r} is not a valid name: a name has 1 to 32 characters of a-z, "
            "0-9 and _, and begins with a letter."
        )
    return name


def timeout_for(
    approver: str | None, *, given: timedelta | None = None, default: timedelta = DEFAULT_TIMEOUT
) -> timedelta:
    """Return the given timeout, or the default for a question with or without approver."""
    if given is not None:
        return given
    return default if approver is None else DECIDED_WITHIN


def on_the_wire(schema: Mapping[str, Json]) -> dict[str, Any]:
    """Return the schema in the subset of JSON Schema that the protocol's forms support.

    Source: ElicitRequestFormParams of the 2025-11-25 and 2026-07-28 schemas.
    """
    properties = cast("Mapping[str, Mapping[str, Json]]", schema.get("properties", {}))
    shown = {name: _wire_property(value) for name, value in properties.items()}
    return {**schema, "properties": shown}


def _asked(schema: type[Any] | Mapping[str, Json]) -> Schema[Any]:
    if schema is not str:
        found: Schema[Any] = schema_of(schema)
        if not found.fields:
            raise InvalidQuestion(
                "The schema has no fields. To ask for a confirmation, use elicit.confirm."
            )
        return found
    one = {"type": "string", "title": ONE_TEXT}
    asked: Schema[Any] = schema_of(
        {"type": "object", "properties": {"response": one}, "required": ["response"]}
    )
    return replace(asked, typed=_response)


def _must_not_ask_for_secrets(message: str, asked: Schema[Any], *, is_one_text: bool) -> None:
    if is_one_text and asks_for_a_secret(message):  # the only field has no name to check
        raise InvalidQuestion(
            f"The question looks like one for a secret, and {_PASSES} If the question asks for "
            "no secret, give it a schema with one field whose name says what the person types."
        )
    for field in asked.fields:
        if field.is_secret:
            raise InvalidQuestion(f"The field {field.name!r} is a secret, and {_PASSES}")
        if looks_secret(field):
            raise InvalidQuestion(
                f"The field {field.name!r} looks like a secret, and {_PASSES} If the field is "
                "not a secret, give it another name and title, or choices."
            )


def _checked(arguments: Mapping[str, object]) -> Mapping[str, Json]:
    must_be_flat(arguments)
    text = json_text(arguments, "arguments")
    size = len(text.encode())
    if size > ARGUMENTS_BYTES_AT_MOST:
        raise InvalidQuestion(
            f"The arguments have {size} bytes, and can have at most {ARGUMENTS_BYTES_AT_MOST}."
        )
    copy: Mapping[str, Json] = json.loads(text)
    return copy


def _wire_property(asked: Mapping[str, Json]) -> dict[str, Json]:
    shown = {
        key: value
        for key, value in asked.items()
        if key not in _ONLY_HERE and not key.startswith("x-")
    }
    if shown.get("format", "date") not in _WIRE_FORMATS:
        del shown["format"]
    if "anyOf" in shown:  # the protocol uses oneOf for a single choice and anyOf for several
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
