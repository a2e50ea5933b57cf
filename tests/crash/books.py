"""A comparison of the provider's payments and events with our store at the end of a test."""

from collections import Counter

from flows.payments.receipt import Payment
from tests.crash.account_env import REFUNDS, AccountEnv
from tests.crash.server import settings_of
from webapp.records.owners import open_owners
from webapp.records.rows import Rows
from webapp.records.values import StoredWebhook

COMPLETED = "checkout.session.completed"
EXPIRED = "checkout.session.expired"


async def agreed(account_env: AccountEnv) -> list[Payment]:
    """Return the ledger after checking that it matches the provider's records to the cent.

    Each paid session has exactly one row, and no other session has a row. Each event that we
    acknowledged is stored, and no work is left for it.
    """
    settings = settings_of(public_port=account_env.port, folder=str(account_env.folder))
    rows = Rows(await open_owners(store=account_env.store, ring=settings.ring))
    payments = [await rows.open(record, Payment) for record in await account_env.records("payment")]
    hooks = [await rows.open(record, StoredWebhook) for record in await account_env.records("hook")]

    characters = await account_env.delivered()
    events = [request["event"] for request in characters]
    acknowledged = {one["event"]["id"] for one in characters if one["is_acknowledged"]}
    assert acknowledged == {hook.event for hook in hooks}
    # An unused checkout may expire at the end.
    assert {one["type"] for one in events if one["id"] not in acknowledged} <= {EXPIRED}
    assert {hook.status for hook in hooks} <= {"applied", "repeated"}

    returned: Counter[str] = Counter()
    for refund in (await account_env.stripe(REFUNDS))["data"]:
        returned[refund["payment_intent"]] += refund["amount"]
    reported = [event["data"]["object"] for event in events if event["type"] == COMPLETED]
    assert Counter(
        (session["id"], session["amount_total"], returned[session["payment_intent"]])
        for session in reported
        if session["payment_status"] == "paid"
    ) == Counter((payment.session, payment.amount, payment.refunded) for payment in payments)
    return payments
