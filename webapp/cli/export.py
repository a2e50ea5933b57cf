"""`elicit export`: one person's data as JSON, to give to that person.

Risks: the copy contains data that the person's own browser never showed, such as tokens and
secrets. The fields of each kind of row are therefore listed here, and none of them is secret.
"""

import argparse
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from flows.elicitation.states import Elicitation
from flows.oauth.connection import Connection
from flows.payments.receipt import Payment
from flows.payments.session import UnresolvedPayment
from webapp.cli.operator import add_owner, owner_of, shows
from webapp.operations.history import AuditRow, audit_entries_of
from webapp.operations.rows import OWNER_CHARACTERS
from webapp.records.values import Approval, ClientRecord, StoredSecret, StoredWebhook, ValueT
from webapp.service import Service

# The exported fields of each kind of row.
_QUESTION = ("id", "kind", "status", "created_at", "expires_at", "settled_at", "content")
_ASKED = ("server", "tool", "client", "message")
_ACCOUNT = (
    *("provider", "label", "person_id", "server", "scopes", "tools", "used", "name", "picture"),
    *("tenant", "details", "status", "connected_at", "ended_at"),
)
_PAYMENT = (
    *("id", "elicitation_id", "server", "tool", "what", "seller", "session", "payment_intent"),
    *("amount", "currency", "is_live", "status", "paid_at", "spent_at", "refunded", "refunded_at"),
    "reason",
)
_UNRESOLVED = (
    *("elicitation_id", "tool", "what", "seller", "session", "amount", "currency", "status"),
    *("found_at", "paid", "paid_currency"),
)
_WEBHOOK = (
    *("seller", "type", "event", "session", "elicitation_id", "status", "received_at"),
    *("erase_at", "body"),
)
_APPROVAL = ("server", "tool", "about", "given_at", "until", "status")
_CLIENT = ("name", "release", "forms", "links")
_SECRET = ("status",)
_NEVER_SHOWN = "secret"  # the kind of question whose answers are never shown


class Export(Struct, frozen=True, kw_only=True):
    """The data of one person. Amounts are in minor units of ISO 4217."""

    owner: str
    made_at: datetime
    questions: list[dict[str, Any]]
    accounts: list[dict[str, Any]]
    payments: list[dict[str, Any]]
    unresolved_payments: list[dict[str, Any]]
    webhooks: list[dict[str, Any]]
    approvals: list[dict[str, Any]]
    clients: list[dict[str, Any]]
    secrets: list[dict[str, Any]]
    audit: list[dict[str, Any]]


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = "Export one person's data. Tokens and secrets are left out."
    add_owner(parser)
    shows(parser, export_owner, of=Export)


async def export_owner(service: Service, owner: str) -> Export:
    """Export a person's data. Raises CommandRefused if no person or several match."""
    tag = await owner_of(service, owner)

    async def rows_of(kind: type[ValueT], fields: tuple[str, ...]) -> list[dict[str, Any]]:
        rows = await service.elicitations.rows.all(kind, owner=tag, skips_unreadable=True)
        return [_fields(row, fields) for row in rows]

    asked = await service.elicitations.rows.all(Elicitation, owner=tag, skips_unreadable=True)
    return Export(
        owner=tag[:OWNER_CHARACTERS],
        made_at=service.clock(),
        questions=[_question(each) for each in asked],
        accounts=await rows_of(Connection, _ACCOUNT),
        payments=await rows_of(Payment, _PAYMENT),
        unresolved_payments=await rows_of(UnresolvedPayment, _UNRESOLVED),
        webhooks=await rows_of(StoredWebhook, _WEBHOOK),
        approvals=await rows_of(Approval, _APPROVAL),
        clients=await rows_of(ClientRecord, _CLIENT),
        secrets=await rows_of(StoredSecret, _SECRET),
        audit=[_audit_json(row) async for row in audit_entries_of(service, tag)],
    )


def _audit_json(row: AuditRow) -> dict[str, Any]:
    """Return the fields of an audit entry that have a value."""
    fields: dict[str, Any] = msgspec.to_builtins(row)
    return {name: value for name, value in fields.items() if value is not None}


def _question(asked: Elicitation) -> dict[str, Any]:
    found = _fields(asked, _QUESTION)
    if asked.kind == _NEVER_SHOWN:
        found["content"] = None
    return {**found, **_fields(asked.request, _ASKED)}


def _fields(row: Struct, fields: tuple[str, ...]) -> dict[str, Any]:
    return {name: msgspec.to_builtins(getattr(row, name)) for name in fields}
