"""The steps of `docs/how-to/first-payment.md`, run at the sandbox's Stripe."""

import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from flows.payments.stripe.gateway import EVENTS, RIGHTS, RIGHTS_OF_THE_DOCTOR
from tests.support.mcp_server import eventually
from tests.support.paying import results_are_noted
from tests.support.samples import PAGES, samples
from tests.support.shop_env import Shop, buying
from webapp.cli.arguments import with_ids
from webapp.cli.examination import Finding, Surroundings, examine_outside
from webapp.cli.filters import filters_in
from webapp.cli.main import parser_for
from webapp.cli.table import Table
from webapp.http.client import Outbound
from webapp.records.ids import tail_of

if TYPE_CHECKING:
    from collections.abc import Sequence

PAGE = PAGES["docs/how-to/first-payment.md"]


async def doctor(shop: Shop) -> list[Finding]:
    """Return the doctor's findings about the provider."""

    async def certificate(host: str, port: int) -> Any:
        raise AssertionError("a server of this machine has none")

    async with httpx.AsyncClient() as client:
        outbound = Outbound(client, allow_loopback=True)
        around = Surroundings(outbound=outbound, now=shop.clock, certificate=certificate)
        found = await examine_outside(shop.settings, around)
    return [each for each in found if each.subject == "stripe"]


async def run(shop: Shop, line: str, *, id: str) -> str:
    """Run a line of the documentation as a command, and return its output."""
    words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', line.replace("ID", id))[1:]]
    options = vars(parser_for(with_ids(words)).parse_args(with_ids(words)))
    work = options.pop("run").args[0]
    if "where" in options:
        filters_in(options)
    given = {name: value for name, value in options.items() if name not in ("of", "as_json")}
    output: Sequence[str] | Table[Any] = await work(shop.service, **given)
    return "\n".join(map(str, output.rows if isinstance(output, Table) else output))


def test_page_names_the_rights_that_the_doctor_tries() -> None:
    # finding: XM9
    named = re.findall(r"(?m)^\| (\w[\w ]*: (?:read|write)) \|", PAGE)
    assert named == [*RIGHTS, *RIGHTS_OF_THE_DOCTOR]


def test_page_names_the_events_that_are_needed() -> None:
    # finding: XM9
    (events,) = samples("docs/how-to/first-payment.md", "text")
    assert sorted(events.split()) == sorted(EVENTS)


async def test_steps_of_the_page_lead_through_a_sale_and_its_refund(shop: Shop) -> None:
    # finding: XM9
    commands = [
        line
        for block in samples("docs/how-to/first-payment.md", "console")
        for line in block.splitlines()
    ]
    assert commands.pop(0) == "elicit doctor"
    assert {each.standing for each in await doctor(shop)} == {"ok"}
    assert any("all permissions that payments need" in each.says for each in await doctor(shop))
    outputs = dict[str, str]()
    async with buying(shop) as buy:
        assert await buy.paid() == "paid 9.00 EUR"
        await results_are_noted(shop)
        (payment,) = await shop.payments()
        for line in commands:
            outputs[line] = await run(shop, line, id=tail_of(payment))
            if "refund" in line:
                await eventually(lambda: shop.post)
                await shop.send_all()
    sale, came, refund, still_open, compared = outputs.values()
    assert "standing='spent'" in sale
    assert "checkout.session.completed" in came
    assert refund.startswith("9.00 EUR is refunded (re_")
    assert still_open == ""
    assert "1 payment pages of this server" in compared
    assert "0 were lost here" in compared
    assert await shop.ledger() == ["refunded"]


@pytest.mark.parametrize(
    ("right", "lacks"), [("/v1/charges", "Charges: read"), ("/v1/disputes", "Disputes: read")]
)
async def test_doctor_finds_a_right_that_the_key_lacks(shop: Shop, right: str, lacks: str) -> None:
    # finding: XM9
    shop.line.refused[right] = (403, "permission_error")
    (wrong,) = [each for each in await doctor(shop) if each.standing == "wrong"]
    assert lacks in wrong.says
    assert "dashboard.stripe.com/apikeys" in str(wrong.fix)
