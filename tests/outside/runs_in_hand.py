"""A payment that a program claimed over the HTTP API, and a refund while the program works."""

import asyncio
import re
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import timedelta
from itertools import product
from pathlib import Path
from urllib.parse import urljoin

import httpx

from flows import Money, elicit
from flows.elicitation.shown_link import ShownLink
from tests.crash.account_env import REFUNDS, AccountEnv, Customer, open_market
from tests.crash.server import settings_of
from tests.crash.shop_env import ProcessPool, no_certificates, open_process_pool
from tests.outside.by_command import output_of
from tests.outside.sales import STORE_KINDS
from tests.support.shared_stores import STORES
from tests.support.ways import with_stores
from webapp.client import Elicit, ServerRefused
from webapp.connecting import connect
from webapp.demo.walker import Page
from webapp.identity.api_keys import KeyScope

FINDING = "XD1"
Takes = Callable[[AccountEnv, httpx.AsyncClient, str], Awaitable[object]]


async def reproduce(times: int) -> AsyncIterator[tuple[str, bool]]:
    with open_process_pool("tests.crash.account_server") as process_pool:
        for _ in range(times):
            orders = [*product((False, True), TAKES)]
            for (is_first, by), store in with_stores(orders, STORE_KINDS, whole=times > 1):
                when = "before its work" if is_first else "at its work"
                is_right = await _is_right(process_pool, store, TAKES[by], is_first=is_first)
                yield f"asked back by {by} {when} ({store})", is_right


async def _is_right(process_pool: ProcessPool, store: str, takes: Takes, *, is_first: bool) -> bool:
    """Return True if the program spent the payment, or raised because the refund `is_first`."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with (
            STORES[store](folder) as address,
            open_market(process_pool, folder, address=address) as env,
            httpx.AsyncClient(verify=no_certificates(), timeout=300) as browser,
        ):
            browser.cookies.set("user", "ann")
            key = await _key(env)
            browser.headers["authorization"] = f"Bearer {key}"  # only the API reads this header
            async with env.start(key=key):
                made: list[str] = []
                try:
                    await _program(env, browser, key, takes, is_first=is_first, made=made)
                except ServerRefused:
                    made.append("raised")
            refunds = (await env.stripe(REFUNDS))["data"]
            statuses = await env.statuses("payment")
            if is_first:
                return (made, statuses, len(refunds)) == (["raised"], ["refunded"], 1)
            return (made, statuses, refunds) == (["made"], ["spent"], [])


async def _program(
    env: AccountEnv,
    browser: httpx.AsyncClient,
    key: str,
    takes: Takes,
    *,
    is_first: bool,
    made: list[str],
) -> None:
    url = f"http://127.0.0.1:{env.port}"
    customer = Customer(browser)
    walks: list[asyncio.Task[str]] = []

    def show(link: ShownLink) -> None:
        walks.append(asyncio.create_task(customer.walk(link.url)))

    way = httpx.AsyncHTTPTransport(verify=no_certificates())
    async with Elicit(url, api_key=key, user="ann", run="order 8", show=show, transport=way):
        receipt = await elicit.payment(Money("9.00", "EUR"), "Tea")

        async def make(_key: str) -> str:
            if not is_first:
                await takes(env, browser, receipt.id)
            made.append("made")
            return "tea"

        if is_first:
            await takes(env, browser, receipt.id)
        await elicit.once("make", make)


async def _key(env: AccountEnv) -> str:
    settings = settings_of(public_port=env.port, folder=str(env.folder), store=env.address)
    async with connect(settings) as service:
        text, _ = await service.identity.api_keys.new(
            program="shop",
            scopes=[KeyScope.ASK, KeyScope.REFUND],
            expires_at=service.clock() + timedelta(days=1),
        )
    return text


async def _by_page(env: AccountEnv, browser: httpx.AsyncClient, payment: str) -> None:
    url = f"http://127.0.0.1:{env.port}/payments"
    for second_look in set(
        re.findall(r'href="(/payments/[^"]+/refund)"', (await browser.get(url)).text)
    ):
        for form in Page((await browser.get(urljoin(url, second_look))).text).forms:
            if form.action.endswith("/refund"):
                await browser.post(urljoin(url, form.action), data=form.fields)


async def _by_api(env: AccountEnv, browser: httpx.AsyncClient, payment: str) -> None:
    url = f"http://127.0.0.1:{env.port}/api/payments/{payment}/refund"
    await browser.post(url, params={"user": "ann"}, json={})


async def _by_command(env: AccountEnv, browser: httpx.AsyncClient, payment: str) -> None:
    (row,) = await env.records("payment")
    await output_of(env, "refund", row.id.removeprefix(row.owner))


TAKES: Mapping[str, Takes] = {"the page": _by_page, "the API": _by_api, "the command": _by_command}
