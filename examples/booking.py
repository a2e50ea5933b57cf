"""A seat that is held while the person pays, and released if the person never does.

elicit serve booking:mcp
"""

import secrets

from mcp.server.mcpserver import MCPServer

from flows import Ending, Money, elicit

mcp = MCPServer("booking")
PRICE = Money("25.00", "EUR")
SEATS = range(1, 41)
held: dict[int, str] = {}  # the hold of each seat; use a table of your own database
sold: set[int] = set()


async def release_seat(ending: Ending) -> None:
    """Release the seat, unless it was sold or another call holds it."""
    seat, hold = ending.payload
    if seat not in sold and held.get(seat) == hold:
        del held[seat]


@mcp.tool()
async def list_free_seats() -> list[int]:
    """List the seats that nobody holds or has bought."""
    return [seat for seat in SEATS if seat not in held and seat not in sold]


@mcp.tool()
async def book_seat(seat: int) -> str:
    """Sell the person a seat, which is held until they have paid."""
    if seat not in SEATS or seat in sold:
        return f"Seat {seat} is not for sale."
    hold = await elicit.once("hold", lambda: secrets.token_hex(8))
    # Register the release first: if the process dies in between, nothing stays held.
    await elicit.on_end(release_seat, [seat, hold], key=seat)
    if held.setdefault(seat, hold) != hold:
        return f"Somebody else is buying seat {seat}. Try again later, or choose another seat."
    receipt = await elicit.payment(PRICE, f"Seat {seat}")
    await receipt.spend()  # from here on, the payment is not refunded automatically
    sold.add(seat)
    return f"Seat {seat} is yours; {receipt.price} was paid."
