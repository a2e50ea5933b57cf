"""Pay twenty invoices. The person confirms each one, and a call that stops halfway can be resumed.

elicit serve batch:mcp
"""

from functools import partial

from mcp.server.mcpserver import MCPServer

from flows import Money, elicit

mcp = MCPServer("invoices")
INVOICES = {f"R-{number}": Money(f"{number}.50", "EUR") for number in range(1, 21)}
paid: set[str] = set()  # use a table of your own database
transfers: dict[str, str] = {}  # simulates your bank: the invoice of each transfer


def list_open() -> list[str]:
    return [invoice for invoice in INVOICES if invoice not in paid]


async def pay(invoice: str, idempotency_key: str) -> str:
    """Transfer the money. A bank that gets the same key twice transfers once."""
    transfers[idempotency_key] = invoice
    paid.add(invoice)
    return idempotency_key


@mcp.tool()
async def pay_invoices() -> str:
    """Pay each open invoice that the person confirms. Call it again to go on with the rest."""
    # Read the list once: the loop starts again after each question, and asks the same questions.
    # `again`: after the result, the same call is a new call at once, and reads the list again.
    for invoice in await elicit.once("open", list_open, again=True):
        shown = {"amount": str(INVOICES[invoice])}
        outcome = await elicit.confirm(f"Pay {invoice}?", arguments=shown).outcome()
        if outcome:
            await elicit.once("pay", partial(pay, invoice), key=invoice)
        elif outcome.status != "declined":
            break  # the person did not answer, so don't ask about the rest
    return f"{len(paid)} of {len(INVOICES)} invoices are paid."
