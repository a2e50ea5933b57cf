"""A dispute is won while the same purchase is asked again: it must be paid for only once."""

from collections.abc import AsyncIterator
from typing import Any

from tests.crash.shop_env import calling, held, open_process_pool
from tests.outside.sales import LEGACY, STORE_KINDS, Sales, selling

FINDING = "XM5"


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with open_process_pool("tests.crash.account_server") as process_pool:
        for store in STORE_KINDS:
            for _ in range(times):
                async with selling(process_pool, store) as (sales, server):
                    async with calling(server, "buy", mode=LEGACY) as call:
                        there = await sales.customer.to_provider(
                            await held(server, call, mode=LEGACY)
                        )
                    await sales.customer.press(there)
                    await sales.env.until("open", "payment")
                    await _claim(sales, there, "created", status="needs_response")
                    await sales.env.until("disputed", "payment")
                    async with calling(server, "buy", mode=LEGACY) as call:
                        is_reported = await _fails_with_dispute(call)
                    async with calling(server, "buy", mode=LEGACY) as call:
                        link = await held(server, call, mode=LEGACY)
                        await _claim(sales, there, "closed", status="won")
                        await sales.env.none_is("disputed", "payment")
                        if not (await sales.customer.page(link)).heading.startswith("Paid"):
                            await sales.customer.walk(link)
                        await call.result()
                    is_one = is_reported and await sales.charges() == 1
                    yield f"{store}: a claim won while it is asked again, one price paid", is_one


async def _fails_with_dispute(call: Any) -> bool:
    """Return True if the call, which would use the disputed payment, fails with the dispute."""
    try:
        await call.result()
    except AssertionError as error:
        return "bank" in str(error)
    return False


async def _claim(sales: Sales, page: str, kind: str, **about: str) -> None:
    session = await sales.session(page)
    dispute = {
        "id": "dp_1",
        "object": "dispute",
        "amount": session["amount_total"],
        "charge": "ch_1",
        "currency": session["currency"],
        "metadata": session["metadata"],
        "payment_intent": session["payment_intent"],
        **about,
    }
    await sales.send_event(f"charge.dispute.{kind}", dispute)
