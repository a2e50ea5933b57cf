"""Statuses of the pinned Stripe version: our code handles each status that the library lists."""

import ast
import inspect
import re
import textwrap

import pytest
import stripe
from stripe.params import WebhookEndpointCreateParams

from flows.payments.stripe import messages
from flows.payments.stripe.gateway import EVENTS, STRIPE_VERSION
from flows.payments.stripe.messages import (
    DISPUTE_EVENTS,
    REFUND_EVENTS,
    REFUND_STATUSES,
    REFUNDED,
    SETTLING_EVENTS,
    STAGES,
)


def words_of(shape: type, field: str) -> set[str]:
    """Return the values that the library's source lists in the type of a field."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(shape)))
    assert isinstance(tree.body[0], ast.ClassDef)
    kinds = [
        node.annotation
        for node in tree.body[0].body
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == field
    ]
    found = [node for kind in kinds for node in ast.walk(kind) if isinstance(node, ast.Constant)]
    return {node.value for node in found if isinstance(node.value, str)}


def test_pinned_stripe_version_matches_library() -> None:
    assert stripe.api_version == STRIPE_VERSION


def test_every_stripe_dispute_status_has_a_stage() -> None:
    # finding: XM3
    assert words_of(stripe.Dispute, "status") <= set(STAGES)
    assert len(words_of(stripe.Dispute, "status")) == 10


def test_every_stripe_session_status_is_known() -> None:
    # finding: XM10
    assert words_of(stripe.checkout.Session, "status") == messages.STATUSES
    assert words_of(stripe.checkout.Session, "payment_status") == messages.PAYMENT_STATUSES


def test_every_stripe_refund_status_is_known() -> None:
    # finding: XM6
    source = inspect.getsource(stripe.Refund)  # the statuses are in the field's own documentation
    (sentence,) = [line for line in source.splitlines() if "Status of the refund." in line]
    assert set(re.findall(r"`([a-z_]+)`", sentence)) == REFUND_STATUSES


def test_every_requested_stripe_event_exists() -> None:
    known = words_of(WebhookEndpointCreateParams, "enabled_events")
    assert known >= EVENTS
    assert SETTLING_EVENTS | DISPUTE_EVENTS | REFUND_EVENTS | {REFUNDED} == EVENTS


@pytest.mark.parametrize("word", sorted(STAGES))
def test_dispute_stage_says_whether_money_is_gone(word: str) -> None:
    is_gone = word in (
        *("needs_response", "under_review", "lost"),
        *("appeal_needs_response", "appeal_under_review"),
    )
    assert STAGES[word].takes_money is is_gone
