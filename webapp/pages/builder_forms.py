"""The views of a question that our own page answers: its form and its end."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.kinds.form import approver_of
from flows.shown import arguments_of
from webapp.kinds.page_kind import arguments_in, terms_in
from webapp.kinds.registry import Kinds
from webapp.pages.form import PageForm, form_of
from webapp.pages.views import View
from webapp.pages.views_forms import (
    Decided,
    Decision,
    DoneForm,
    DoneSecret,
    StartConfirm,
    StartDecision,
    StartForm,
    StartSecret,
)


def start_view(
    elicitation: Elicitation, kinds: Kinds, common: Mapping[str, Any], *, form: PageForm | None
) -> View:
    """Return the page with the form. `form` has the values typed before, and their faults.

    `common` has the fields of every page that asks.
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
    """Return the view for the asker while another person decides."""
    return StartDecision(
        **common,
        status=elicitation.status,
        message=elicitation.asked.message,
        arguments=arguments_of(terms_in(elicitation).get("arguments")),
        approver=approver_of(elicitation) or "",
    )


def decided_view(elicitation: Elicitation, *, now: datetime) -> View | None:
    """Return the view of another person's decision for the asker, or None while it is open."""
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
    """Return the state of a question that another person decides."""
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
