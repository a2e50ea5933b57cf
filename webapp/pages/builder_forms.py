"""What a person is shown of a question that our own page answers: its form, and its end."""

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from flows.elicitation.states import Elicitation, Json, Status
from flows.elicitation.traits import traits_of
from flows.kinds.form import approver_of
from webapp.kinds.page_kind import arguments_in, terms_in
from webapp.kinds.registry import Kinds
from webapp.pages.form import PageForm, form_of
from webapp.pages.renderer import PILED_MARKS
from webapp.pages.views import View
from webapp.pages.views_forms import (
    Argument,
    Decided,
    Decision,
    DoneForm,
    DoneSecret,
    StartConfirm,
    StartDecision,
    StartForm,
    StartSecret,
)

# Letters and marks that show nothing: Unicode's Default_Ignorable_Code_Point, as far as Python
# calls them printable, and the empty pattern of braille.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0100-\U000e01ef]"
)
_LINE = 60  # letters of JSON: what is longer stands in several lines


def start_view(
    elicitation: Elicitation, kinds: Kinds, common: Mapping[str, Any], *, form: PageForm | None
) -> View:
    """The page that takes the answer; `form` has what was typed before and what is wrong with it.

    `common` is what every page that asks says, and where it sends the answer.
    """
    message, traits = elicitation.asked.message, traits_of(elicitation.kind)
    if traits.page == "confirm":
        return StartConfirm(
            **common,
            message=message,
            arguments=arguments_of(arguments_in(elicitation)),
            form=form or PageForm(fields=()),
            is_gate=traits.is_gate,
            can_be_kept=bool(terms_in(elicitation).get("can_be_kept")),
        )
    kind = kinds.on_page(elicitation.kind)
    assert kind is not None, elicitation.kind
    form = form or form_of(kind.schema(elicitation))
    if traits.page == "secret":
        name = kinds.secrets.name(elicitation)
        return StartSecret(**common, message=message, form=form, name=name)
    return StartForm(**common, message=message, form=form)


def done_view(elicitation: Elicitation, kinds: Kinds) -> View:
    server, page = elicitation.asked.server, traits_of(elicitation.kind).page
    if page == "secret":
        return DoneSecret(server=server, kept=kinds.secrets.name(elicitation) is not None)
    return DoneForm(server=server, is_approved=page != "form", is_by_model=elicitation.is_by_model)


def waiting_view(elicitation: Elicitation, common: Mapping[str, Any]) -> View:
    """What whoever asked sees while somebody else decides."""
    return StartDecision(
        **common,
        status=elicitation.status,
        message=elicitation.asked.message,
        arguments=arguments_of(terms_in(elicitation).get("arguments")),
        approver=approver_of(elicitation) or "",
    )


def decided_view(elicitation: Elicitation, *, now: datetime) -> View | None:
    """How somebody else's decision came out, for whoever asked; None while it is open."""
    decision = decision_of(elicitation, now=now)
    if decision == "waiting":
        return None
    return Decided(
        server=elicitation.asked.server,
        approver=approver_of(elicitation) or "",
        decision=decision,
        reason=elicitation.why if decision == "declined" else None,
    )


def decision_of(elicitation: Elicitation, *, now: datetime) -> Decision:
    """How it stands with what somebody else decides."""
    match elicitation.status:
        case Status.ACCEPTED:
            return "approved"
        case Status.DECLINED:
            return "declined"
        case Status.EXPIRED:
            return "expired"
        case status if status.is_final:
            return "withdrawn"
        case _:
            return "expired" if now >= elicitation.expires_at else "waiting"


def arguments_of(arguments: Json, *, in_a_line: bool = False) -> tuple[Argument, ...]:
    """A tool's arguments as a person reads them: all of them, each whole.

    No two that differ look alike. `in_a_line`: each stands in a line of its own.
    """
    if not isinstance(arguments, Mapping):
        return ()
    return tuple(
        Argument(name=_name(name), value=_words(value, in_a_line=in_a_line))
        for name, value in arguments.items()
    )


def _name(name: str) -> str:
    return name if name.isidentifier() and _can_be_seen(name) else _in_json(name)


def _words(value: Json, *, in_a_line: bool) -> str:
    match value:
        case str() if _is_plain(value, in_a_line=in_a_line):
            return value
        case True:
            return "yes"
        case False:
            return "no"
        case None:
            return "nothing"
        case _:
            text = _in_json(value)
            return text if in_a_line or len(text) <= _LINE else _in_json(value, indent=2)


def _is_plain(text: str, *, in_a_line: bool) -> bool:
    """Whether it looks like nothing else: no number, no JSON, none of our own words."""
    signs = text if in_a_line else text.replace("\n", "").replace("\t", "")
    if not _can_be_seen(signs) or PILED_MARKS.search(text) or text in ("yes", "no", "nothing"):
        return False
    if text.strip() != text.rstrip("\n") or text[:1] in ("", '"', "[", "{"):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return True
    return False


def _in_json(value: Json, *, indent: int | None = None) -> str:
    """As JSON, in which what cannot be seen is spelled; a line end can only be ours."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    text = PILED_MARKS.sub(lambda marks: json.dumps(marks[0])[1:-1], text)
    return "".join(
        sign if _can_be_seen(sign) or sign == "\n" else json.dumps(sign)[1:-1] for sign in text
    )


def _can_be_seen(text: str) -> bool:
    return text.isprintable() and _UNSEEN.search(text) is None
