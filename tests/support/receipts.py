"""Receipts of payments that were made."""

from typing import Any

from flows.payments.receipt import (
    Payment,
    ReceiptStatus,
)
from tests.support.clock import NOON

OPEN, TAKEN, SPENT, REFUNDING, REFUNDED, DISPUTED = ReceiptStatus


def paid(status: ReceiptStatus = OPEN, **changes: Any) -> Payment:
    fields: dict[str, Any] = {
        "id": "ownertag-r_1",
        "owner": "ownertag",
        "elicitation_id": "ownertag-e_1",
        "join": "j",
        "server": "shop",
        "tool": "buy",
        "seller": "stripe",
        "session": "cs_test_1",
        "payment_intent": "pi_1",
        "amount": 900,
        "currency": "EUR",
        "what": "Premium report",
        "is_live": False,
        "paid_at": NOON,
        "status": status,
    }
    return Payment(**{**fields, **changes})
