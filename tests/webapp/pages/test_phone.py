"""The QR code that opens the page of a question on a phone."""

import re

import pytest
import segno

from tests.support.clock import Clock
from tests.support.page_views import Shown, usual
from tests.support.service_env import plain_settings, question_in_store
from webapp.pages.builder import PageBuilder
from webapp.pages.views import Asking, StartAccount, StartPayment, StartUrl, UseAccount
from webapp.pages.views_forms import StartConfirm, StartForm, StartSecret
from webapp.service import ServiceOptions, open_service
from webapp.stores.sqlite import MemoryStore

STARTS = (StartAccount, StartPayment, StartUrl, UseAccount, StartConfirm, StartForm, StartSecret)


@pytest.mark.parametrize("view", STARTS)
def test_start_page_has_its_own_address_as_qr_code(view: type[Asking], shown: Shown) -> None:
    url = "https://tools.example.com/e/" + "a" * 190
    page = shown(usual(view, phone_url=url))
    assert page.text("summary").endswith("Continue on your phone")
    (path,) = [path["d"] for path in page.named("path") if path.get("stroke") == "#000"]
    assert dark_modules(path) == sum(map(sum, segno.make_qr(url, error="l").matrix))
    assert page.text("summary") != shown(usual(view, phone_url=None)).text("summary")


def dark_modules(path: str) -> int:
    return sum(int(width) for width in re.findall(r"h(\d+)", path))


@pytest.mark.parametrize(
    ("url", "shows"),
    [
        ("https://tools.example.com", "https://tools.example.com/e/x"),
        ("https://example.com/tools/", "https://example.com/tools/e/x"),
        ("http://127.0.0.1:8765", None),
        ("http://[::1]:8765", None),
        ("http://localhost:8765", None),
    ],
)
async def test_only_address_that_a_phone_can_reach_is_shown(url: str, shows: str | None) -> None:
    clock = Clock()
    async with open_service(
        plain_settings(url=url), ServiceOptions(clock=clock), store=MemoryStore()
    ) as service:
        question = question_in_store(service)
        view = await PageBuilder(service, question, here="/e/x", csrf="c").view(is_bound=False)
        assert isinstance(view, StartUrl)
        assert view.phone_url == shows
