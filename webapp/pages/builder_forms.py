"""The views of a question that our own page answers, and of a payment that has arrived."""

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from babel import Locale

from flows.elicitation.states import Elicitation, Status
from flows.elicitation.traits import traits_of
from flows.kinds.form import approver_of, voting_of
from flows.payments.claims import state_of
from flows.payments.receipt import Payment
from flows.schema.schema import ONE_TEXT
from flows.shown import Argument, arguments_of, with_titles
from webapp.kinds.page_kind import is_before_tool, question_text, terms_in
from webapp.kinds.registry import Kinds
from webapp.pages.form import PageForm, form_of
from webapp.pages.views import DonePayment, Late, View
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
from webapp.pages.views_own import Over, PaymentOver
from webapp.prices import price_in
from webapp.records.ids import OWNER_TAG_CHARACTERS

_HEADING_CHARACTERS = 100
# Kinds of secrets. If the secret's name does not end with a kind, the label is the first kind here
# that the question mentions, or "API key" if the question mentions none.
_SECRETS = ("API key", "Password", "Passphrase", "Token", "PIN", "Key")


def start_view(
    elicitation: Elicitation, kinds: Kinds, common: Mapping[str, Any], *, form: PageForm | None
) -> View:
    """Return the page with the form. `form` has the values typed before, and their faults.

    `common` has the fields of every page that asks.
    """
    message, traits = elicitation.request.message, traits_of(elicitation.kind)
    if traits.page == "confirm":
        return StartConfirm(
            **common,
            message=message,
            question=question_of(elicitation),
            arguments=arguments_shown(elicitation),
            form=form or PageForm(fields=()),
            is_gate=traits.is_gate,
            described=elicitation.request.described,
            can_be_stored=bool(terms_in(elicitation).get("can_be_kept")),
        )
    kind = kinds.on_page(elicitation.kind)
    assert kind is not None, elicitation.kind
    form = form or form_of(kind.schema(elicitation))
    if traits.page == "secret":
        name = kinds.secrets.name(elicitation)
        label = secret_label(form, message=message, name=name)
        if len(form.fields) == 1 and form.fields[0].label == ONE_TEXT:
            form = replace(form, fields=(replace(form.fields[0], label=label),))
        return StartSecret(**common, message=message, label=label, form=form, name=name)
    return StartForm(
        **common,
        message=message,
        question=question_of(elicitation),
        arguments=arguments_shown(elicitation),
        form=form,
    )


def done_view(elicitation: Elicitation, kinds: Kinds) -> View:
    server, page = server_of(elicitation), traits_of(elicitation.kind).page
    if page == "secret":
        return DoneSecret(server=server, is_stored=kinds.secrets.name(elicitation) is not None)
    return DoneForm(server=server, is_approved=page != "form", is_by_model=elicitation.is_by_model)


def waiting_view(elicitation: Elicitation, common: Mapping[str, Any]) -> View:
    """Return the view for the asker while another person decides."""
    voting = voting_of(elicitation)
    return StartDecision(
        **common,
        needs=1 if voting is None else voting.needs,
        given=0 if voting is None else len(voting.approvals),
        status=elicitation.status,
        message=question_text(elicitation),
        question=question_of(elicitation),
        arguments=arguments_shown(elicitation),
        approver=approver_of(elicitation) or "",
    )


def decided_view(elicitation: Elicitation, *, now: datetime) -> View | None:
    """Return the view of another person's decision for the asker, or None while it is open."""
    decision = decision_of(elicitation, now=now)
    if decision == "waiting":
        return None
    return Decided(
        server=server_of(elicitation),
        question=question_of(elicitation),
        approver=approver_of(elicitation) or "",
        decision=decision,
        reason=elicitation.why if decision == "declined" else None,
    )


def server_of(elicitation: Elicitation) -> str:
    """Return the name of the server that asks, for people."""
    return elicitation.request.server_title or elicitation.request.server


def question_of(elicitation: Elicitation) -> str | None:
    """Return the question as a heading, or None if it is too long for one."""
    text = question_text(elicitation)
    is_heading = len(text) <= _HEADING_CHARACTERS and "\n" not in text.strip()
    return text if is_heading and text.strip() else None


def arguments_shown(elicitation: Elicitation, *, in_a_line: bool = False) -> tuple[Argument, ...]:
    """Return the arguments that the person approves. A gate shows the tool's titles for them."""
    found = arguments_of(terms_in(elicitation).get("arguments"), in_a_line=in_a_line)
    described = elicitation.request.described
    if described is None or not is_before_tool(elicitation):
        return found
    return with_titles(found, described.arguments)


def secret_label(form: PageForm, *, message: str, name: str | None) -> str:
    """Return the label of a secret, such as "API key", or an empty text for several fields."""
    if len(form.fields) != 1:
        return ""
    (field,) = form.fields
    if field.label != ONE_TEXT:
        return field.label
    words = re.sub(r"[\W_]+", " ", name or "").strip()
    if any(words.lower().endswith(kind.lower()) for kind in _SECRETS):
        return words[:1].upper() + words[1:]
    mentioned = re.findall(r"\w+", message.lower())
    return next((kind for kind in _SECRETS if kind.lower() in mentioned), _SECRETS[0])


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


# Payments that have arrived.

OVER: Mapping[str, Over] = {
    "refunding": "refunding",
    "refund pending": "refund_pending",
    "refund failed": "refund_failed",
    "refunded": "refunded",
    "disputed": "disputed",
    "dispute lost": "dispute_lost",
    "dispute appealed": "dispute_appealed",
}


def view_of(payment: Payment, *, server: str, is_late: bool, locale: Locale | None) -> View:
    """Return the view of a payment at its link.

    `is_late`: the question had ended before the payment arrived.
    """
    price, is_test = price_in(locale, payment.price), not payment.is_live
    receipt = payment.id[OWNER_TAG_CHARACTERS:]
    if payment.has_ended:
        return PaymentOver(
            server=server,
            became=OVER[state_of(payment)],
            price=price_in(locale, payment.owed_price) if payment.owed else price,
            what=payment.what,
            receipt=receipt,
            is_test=is_test,
        )
    returned = price_in(locale, payment.refunded_price) if payment.is_part_refunded else None
    if is_late:
        return Late(server=server, kind="payment", price=price, is_test=is_test, returned=returned)
    return DonePayment(
        server=server,
        price=price,
        what=payment.what,
        receipt=receipt,
        is_test=is_test,
        returned=returned,
    )
