"""Forms in the client: what is sent to the client, and what its answer does.

Risks: a client, or the model behind it, sends an answer that does not match the question. Each
answer is therefore checked here before it settles the question. An invalid answer ends the
question as failed, and the tool learns which fields are invalid and why.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, cast

from flows.elicitation.states import DOES_NOT_FIT, Elicitation, Json, Status
from flows.elicitation.traits import InClient
from flows.errors import InvalidAnswer, InvalidSchema
from flows.kinds.form import on_the_wire
from flows.schema.fields import fault_in
from flows.schema.schema import Fault, check, with_content, without_blanks
from flows.shown import arguments_of
from webapp.calls.call import Call
from webapp.elicitations.complete import complete_elicitation
from webapp.kinds.page_kind import PageKind, arguments_in
from webapp.kinds.registry import Kinds

# The amount of text that a client's form is assumed to show in full.
_ARGUMENTS_AT_MOST = 20
_LINE_AT_MOST = 300
_CHARACTERS_AT_MOST = 2000
_NOT_SENT = "Your answer was not sent:"

# The form for a user code that a person types in the chat.
_CODE = "code"
USER_CODE_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        _CODE: {
            "type": "string",
            "title": "The eight letters that the page shows",
            "minLength": 1,
            "maxLength": 64,
        }
    },
    "required": [_CODE],
}


class HasKinds(Protocol):
    @property
    def kinds(self) -> Kinds: ...


def fits(arguments: Json) -> bool:
    """Return True if a client's form can show all arguments. If not, our page asks the question."""
    shown = arguments_of(arguments, in_a_line=True)
    return (
        len(shown) <= _ARGUMENTS_AT_MOST
        and all(len(one.name) + len(one.value) <= _LINE_AT_MOST for one in shown)
        and sum(len(one.name) + len(one.value) for one in shown) <= _CHARACTERS_AT_MOST
    )


def message_of(call: HasKinds, asked: Elicitation) -> str:
    """Return the question with its arguments, because a client shows no arguments itself.

    If the client's last answer was refused, the message begins with the reasons.
    """
    arguments = arguments_of(arguments_in(asked), in_a_line=True)
    refused = call.kinds.rules.refused.get(asked.id)
    titles = {field.name: field.title for field in _kind(call, asked).schema(asked).fields}
    reasons = [
        f"{titles[fault.path]}: {fault.message}"
        if len(titles) > 1 and fault.path in titles
        else fault.message
        for fault in (() if refused is None else refused.faults)
    ]
    lines = [asked.request.message, *(f"{one.name}: {one.value}" for one in arguments)]
    return "\n".join([_NOT_SENT, *reasons, "", *lines] if reasons else lines)


def schema_of(call: HasKinds, asked: Elicitation) -> dict[str, Any]:
    """Return the schema for the client, with the values of a refused answer as defaults."""
    schema = _kind(call, asked).schema(asked)
    refused = call.kinds.rules.refused.get(asked.id)
    if refused is not None and isinstance(refused.content, Mapping):
        typed = refused.content
        valid = [
            field.name
            for field in schema.fields
            if field.name in typed and fault_in(field, typed[field.name]) is None
        ]
        with suppress(InvalidSchema):  # too large with these values
            schema = with_content(schema, {name: typed[name] for name in valid})
    return on_the_wire(schema.json)


async def acted(call: Call, asked: Elicitation, action: str, content: object) -> Elicitation | None:
    """Act on the client's answer. Return the question, or None if the person dismissed the form.

    The question is still open if its form is to be shown again, because its check refused the
    answer.
    """
    match action:
        case "accept":
            return await answered(call, asked, content)
        case "decline":
            return await call.elicitations.end(asked, Status.DECLINED)
        case _:
            return None


async def answered(
    call: Call, asked: Elicitation, content: object, *, ends: bool = True
) -> Elicitation:
    """Settle the question with the accepted form, and return the question.

    With `ends`, an invalid form ends the question. Exception: if the question has a check, the
    question stays open, and the client's form is shown again a few times. Without `ends`, an
    invalid form leaves the question open.
    """
    if call.clock() >= asked.expires_at:  # the sweeper has not ended the question yet
        return await call.elicitations.end(asked, Status.EXPIRED)
    given, faults = await _read(call, asked, content)
    if not faults:
        try:
            return await call.kinds.complete(asked, given, InClient())
        except InvalidAnswer as refused:
            faults = [Fault(path=one["path"], message=one["message"]) for one in refused.details]
    if call.kinds.rules.refuse(asked, given, faults) or not ends:
        return asked
    ended = await call.elicitations.end(asked, Status.FAILED, why=DOES_NOT_FIT)
    if ended.why == DOES_NOT_FIT:
        call.faults[asked.id] = faults
    return ended


async def acted_late(call: Call, asked: Elicitation, action: str, content: object) -> bool:
    """Act on a form's answer that came after its call had ended. Return False if it is invalid.

    A valid answer settles the question for the next identical call. An invalid answer changes
    nothing. If a check refused the answer, the next call shows the form again.
    """
    if action == "accept":
        current = await answered(call, asked, content, ends=False)
        return current.status.is_final or asked.id in call.kinds.rules.refused
    await acted(call, asked, action, content)
    return True


def is_valid(ended: Elicitation | None) -> bool:
    """Return False if the question ended because the client's answer was not valid."""
    return ended is None or ended.why != DOES_NOT_FIT


async def agreed(call: Call, asked: Elicitation) -> Elicitation:
    """Settle a question whose tool only waits until the person agrees to open the link."""
    await complete_elicitation(call.elicitations, asked.id, {}, InClient())
    return await call.elicitations.rows.as_remembered(asked.id) or asked


async def _read(call: Call, asked: Elicitation, content: object) -> tuple[Json, Sequence[Fault]]:
    """Return the parsed answer and its faults."""
    schema = _kind(call, asked).schema(asked)
    given: Json = {}  # a confirmation has no content
    if schema.fields and content is not None:
        given = without_blanks(schema, cast("Json", content))
    faults: Sequence[Fault] = check(schema, given)
    return given, faults or await call.kinds.rules.faults(asked, given)


def _kind(call: HasKinds, asked: Elicitation) -> PageKind:
    kind = call.kinds.on_page(asked.kind)
    assert kind is not None, asked.kind
    return kind


def user_code_in(content: object) -> str:
    """Return the typed code, or an empty text. A client may send anything."""
    if not isinstance(content, Mapping):
        return ""
    typed = cast("Mapping[str, object]", content).get(_CODE)
    return typed if isinstance(typed, str) else ""
