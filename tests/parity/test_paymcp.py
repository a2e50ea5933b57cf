"""paymcp: defects that no other test covers."""

import json

from tests.support.mcp_server import LEGACY, soon
from tests.support.shop_env import open_shop


async def test_payment_provider_receives_no_session_or_owner_of_caller() -> None:
    # defect: paymcp session id leaves
    async with open_shop() as shop:
        caller = await shop.env.cut_off_caller(LEGACY)
        call = caller.call("report")
        (row,) = await shop.env.pending()
        payer = await shop.person()
        there = await payer.go_on(shop.env.link_of(row))
        text = json.dumps(await shop.session(there.rsplit("/", 1)[1])) + there
        session_id = caller.headers["mcp-session-id"]
        assert len(session_id) >= 16
        assert session_id not in text
        assert row.owner not in text.replace(row.id, "")  # our ids start with the owner's tag
        await payer.press_there(there, "card")
        await shop.send_all()
        assert "paid 9.00 EUR" in (await soon(call)).text
