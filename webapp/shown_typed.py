"""What a person is shown of a question that our own page answers: its form, and its end."""

import json
from collections.abc import Mapping
from typing import Any, cast

from flows.elicitation import BY_MODEL, Elicitation, Json
from webapp.forms import Form, form_of
from webapp.kinds import Kinds
from webapp.views import View
from webapp.views_typed import (
    Argument,
    DoneForm,
    DoneSecret,
    StartConfirm,
    StartForm,
    StartSecret,
)

ARGUMENTS_AT_MOST = 50


def start_view(
    elicitation: Elicitation, kinds: Kinds, common: Mapping[str, Any], *, form: Form | None
) -> View:
    """The page that takes the answer; `form` has what was typed before and what is wrong with it.

    `common` is what every page that asks says, and where it sends the answer.
    """
    message = elicitation.asked.message
    if elicitation.kind == "secret":
        secrets = kinds.secrets
        return StartSecret(
            **common,
            message=message,
            form=form or form_of(secrets.schema(elicitation)),
            name=secrets.terms(elicitation).name,
        )
    if elicitation.kind == "form":
        shown = form or form_of(kinds.forms.schema(elicitation))
        return StartForm(**common, message=message, form=shown)
    terms = kinds.forms.terms(elicitation)
    return StartConfirm(
        **common,
        message=message,
        arguments=arguments_of(terms.arguments),
        is_gate=terms.covers is not None,
        can_be_kept=terms.can_be_kept,
    )


def done_view(elicitation: Elicitation, kinds: Kinds) -> View:
    server = elicitation.asked.server
    if elicitation.kind == "secret":
        return DoneSecret(server=server, kept=kinds.secrets.terms(elicitation).name is not None)
    return DoneForm(
        server=server,
        is_approved=elicitation.kind != "form",
        is_by_model=elicitation.why == BY_MODEL,
    )


def arguments_of(arguments: Json) -> tuple[Argument, ...]:
    """A tool's arguments as a person reads them; a very long list is cut."""
    if not isinstance(arguments, Mapping):
        return ()
    listed = list(arguments.items())
    shown = [Argument(name=name, value=_words(value)) for name, value in listed[:ARGUMENTS_AT_MOST]]
    if len(listed) > ARGUMENTS_AT_MOST:
        shown.append(Argument(name="...", value=f"and {len(listed) - ARGUMENTS_AT_MOST} more"))
    return tuple(shown)


def _words(value: Json) -> str:
    match value:
        case str():
            return value
        case True:
            return "yes"
        case False:
            return "no"
        case None:
            return "nothing"
        case list() | tuple() if all(isinstance(one, str) for one in value):
            return ", ".join(cast("list[str]", value))
        case _:
            return json.dumps(value, ensure_ascii=False)
