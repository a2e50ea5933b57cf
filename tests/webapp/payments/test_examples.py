"""Tests that examples/payments sells something when it is set up as its comments say."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from flows.payments.receipt import ReceiptStatus
from flows.payments.refunds import NoRefunds
from tests.support.clock import NOON
from tests.support.declared_env import CASES, HOOK_SECRET, SECRET, Case
from tests.support.gateway_env import ID
from tests.support.payment_env import selling
from tests.support.service_env import URL
from tests.support.signers import EXAMPLES, SIGNERS, SQUARE
from tests.support.signing import Headers, square
from webapp.settings.settings import read_settings

FOLDER = Path(__file__).parents[3] / "examples" / "payments"
OPEN, REFUNDED = ReceiptStatus.OPEN, ReceiptStatus.REFUNDED


class Provider:
    """A simulated provider that sends the recorded replies of `case`.

    The recorded elicitation id is replaced by `id`.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.id = ID
        self.word = case.open_word
        self.calls: list[str] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        assert SECRET in "".join(request.headers.values())
        case, call = self.case, f"{request.method} {request.url.raw_path.decode()}"
        self.calls.append(call)
        if (request.method, str(request.url)) == ("POST", case.create):
            assert json.loads(request.content).keys() == case.body.keys()
            return self._reply(case.opened)
        if call == f"GET {case.fetch}":
            return self._reply(case.fetched(self.word))
        if call == case.refund:
            return self._reply(case.refund_replies["succeeded"])
        assert request.method == "GET"
        assert case.held is not None
        return self._reply(case.held(0))

    def _reply(self, data: Any) -> httpx.Response:
        return httpx.Response(200, content=self.about(data))

    def about(self, data: Any) -> bytes:
        return json.dumps(data).replace(ID, self.id).encode()


def variables_in(file: Path, case: Case) -> Iterator[tuple[str, str]]:
    """Yield the variables that the comment of the file asks for, with values."""
    prefix = f"ELICIT_{case.name.upper()}_"
    values = {
        "KEY": SECRET,
        "WEBHOOK_SECRET": HOOK_SECRET,
        "LIVE": str(int(case.seller.is_live)),
        "CHECKOUT_ORIGINS": ",".join(case.seller.more_checkout_origins),
        **{need.upper(): value for need, value in case.seller.own.items()},
    }
    for name in re.findall(rf"^#   {prefix}(\w+)  ", file.read_text("utf-8"), re.MULTILINE):
        yield prefix + name, values[name]


def signed(case: Case, body: bytes) -> Headers:
    scheme = EXAMPLES[case.name].scheme
    if scheme is SQUARE:
        return square(body, secret=HOOK_SECRET, url=f"{URL}/webhooks/square")
    return SIGNERS[scheme](body, HOOK_SECRET, NOON)


def test_every_example_has_recorded_replies() -> None:
    assert [file.name for file in sorted(FOLDER.iterdir())] == [
        f"{case.name}.toml" for case in CASES
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
async def test_example_sells_and_refunds_as_its_file_says(tmp_path: Path, case: Case) -> None:
    file = FOLDER / f"{case.name}.toml"
    text = " ".join(file.read_text("utf-8").replace("#", " ").split())
    assert "documentation and" in text
    assert "was not tried against" in text
    declared = case.seller.declaration
    kinds = text.partition(f"/webhooks/{case.name}: ")[2].partition(" This follows")[0].split(", ")
    assert {*kinds} == {*declared.events, *declared.news}
    settings = read_settings(
        {"HOME": str(tmp_path), "ELICIT_CONFIG": str(file), **dict(variables_in(file, case))}
    )
    assert settings.sellers == {case.name: case.seller}

    provider = Provider(case)
    async with selling(settings.sellers[case.name], provider) as payment_env:
        asked = await payment_env.asked(is_live=case.seller.is_live)
        provider.id = asked.id
        assert await payment_env.go_on(asked) == case.page
        if case.fetch is not None:
            ask_provider = payment_env.service.kinds.payments.checkouts.ask_provider
            await ask_provider(await payment_env.now(asked))
            assert provider.calls[-1] == f"GET {case.fetch}"
        assert await payment_env.paid(asked) is None

        paid = [word for word, says in case.words.items() if says == "paid"]
        provider.word = paid[0] if paid else provider.word
        body = provider.about(case.event(case.paid_event))
        refused = await payment_env.post(body + b" ", headers=signed(case, body))
        assert refused.status_code == 400
        assert await payment_env.paid(asked) is None
        assert (await payment_env.post(body, headers=signed(case, body))).status_code == 200
        payment = await payment_env.receipt(asked)
        assert (payment.status, payment.payment_intent) == (OPEN, case.payment)

        refund = payment_env.service.kinds.payments.refunds.refund
        if case.refund is None:
            with pytest.raises(NoRefunds, match="Refund it there: https://"):
                await refund(payment.owner, payment.id, reason=None)
            return
        assert str((await refund(payment.owner, payment.id, reason=None)).price) == "9.00 EUR"
        assert (await payment_env.receipt(asked)).status is REFUNDED
        assert provider.calls[-1] == case.refund
