"""The books: what the provider has and has told, against what stands in our store at the end."""

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
    """The ledger, once it is known to say what the provider says, to the cent.

    Each paid session has its one row and nothing else has one, and each event that we acknowledged
    is kept, with nothing left to be done about it.
    """
    settings = settings_of(public_port=account_env.port, folder=str(account_env.folder))
    rows = Rows(await open_owners(store=account_env.store, ring=settings.ring))
    payments = [await rows.open(record, Payment) for record in await account_env.records("payment")]
    hooks = [await rows.open(record, StoredWebhook) for record in await account_env.records("hook")]

    letters = await account_env.carried()
    events = [letter["event"] for letter in letters]
    acknowledged = {one["event"]["id"] for one in letters if one["is_acknowledged"]}
    assert acknowledged == {hook.event for hook in hooks}
    # A checkout that nobody needs may end when all is over.
    assert {one["type"] for one in events if one["id"] not in acknowledged} <= {EXPIRED}
    assert {hook.status for hook in hooks} <= {"applied", "repeated"}

    returned: Counter[str] = Counter()
    for refund in (await account_env.stripe(REFUNDS))["data"]:
        returned[refund["payment_intent"]] += refund["amount"]
    told = [event["data"]["object"] for event in events if event["type"] == COMPLETED]
    assert Counter(
        (session["id"], session["amount_total"], returned[session["payment_intent"]])
        for session in told
        if session["payment_status"] == "paid"
    ) == Counter((payment.session, payment.amount, payment.refunded) for payment in payments)
    return payments
