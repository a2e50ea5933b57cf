"""The page for a secret: named controls, no secret sent back, strangers' words in their place."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, Route, async_playwright, expect
from pydantic import BaseModel, Field, SecretStr

from flows import elicit
from flows.kinds.secret import Secret
from flows.schema.schema import Schema, parse
from tests.support.page_views import HOSTILE, NOW
from webapp.pages import renderer as module
from webapp.pages.form import form_of
from webapp.pages.renderer import Renderer
from webapp.pages.views_forms import StartSecret

pytestmark = pytest.mark.asyncio(loop_scope="module")

STATIC = Path(module.__file__).parent / "static"
TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
ORIGIN = "http://127.0.0.1:8765"
MASKED = re.compile("masked")
POLICY = (
    "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self';"
    " form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


class Acme(BaseModel):
    user: Annotated[str, Field(title="User name", json_schema_extra={"x-visible": True})]
    api_key: Annotated[
        SecretStr, Field(title="API key", description="It starts with ak_.", min_length=8)
    ]
    pem: Annotated[str, Field(title="Private key", max_length=4000)]
    region: Literal["eu-west", "us-east"]
    rights: list[Literal["read", "write"]] = ["read"]
    is_test: Annotated[bool, Field(title="This is a test account")] = True


def schema_for(asked: Any = str) -> Schema[Any]:
    request = elicit.secret("Your key.", asked).request
    assert isinstance(request, Secret)
    return request.schema


def view(schema: Schema[Any], sent: Mapping[str, Sequence[str]] | None = None) -> StartSecret:
    faults = () if sent is None else parse(schema, sent).faults
    return StartSecret(
        server="my tools",
        host="tools.example.com",
        tool="list_orders",
        message="The key of your Acme account.",
        form=form_of(schema, values=sent, faults=faults),
        asked_at=NOW - timedelta(seconds=12),
        now=NOW,
        expires_at=NOW + timedelta(minutes=4, seconds=30),
        continue_action="/e/abc",
        decline_action="/e/abc/decline",
        csrf="c5f1",
        client="Claude",
        name="acme",
    )


WRONG: Mapping[str, list[str]] = {
    "answer.user": ["ada <lovelace>"],
    "answer.api_key": ["sesame"],
    "answer.pem": ["-- open sesame --"],
    "answer.rights": ["1"],
}


class Site:
    """Answers a browser as the server would, and keeps what was sent."""

    def __init__(self, html: str) -> None:
        self.html = html
        self.sent: list[tuple[str, dict[str, list[str]]]] = []
        self.complaints: list[str] = []

    async def answer(self, route: Route) -> None:
        request, path = route.request, urlsplit(route.request.url).path
        if path.startswith("/static/"):
            asset = STATIC / path.removeprefix("/static/")
            await route.fulfill(body=asset.read_bytes(), content_type=TYPES[asset.suffix])
        elif request.method == "POST":
            self.sent.append((path, parse_qs(request.post_data or "", keep_blank_values=True)))
            await route.fulfill(status=204)
        else:
            await route.fulfill(
                body=self.html,
                content_type="text/html; charset=utf-8",
                headers={"content-security-policy": POLICY},
            )

    async def open(self, browser: Browser, **options: Any) -> Page:
        page = await browser.new_page(**options)
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        await page.route("**/*", self.answer)
        await page.goto(f"{ORIGIN}/e/abc")
        return page


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(chromium: str) -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        started = await playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield started
        await started.close()


async def test_every_control_has_its_name_its_help_and_its_fault(
    pages: Renderer, browser: Browser
) -> None:
    site = Site(pages.render(view(schema_for(Acme), WRONG)))
    page = await site.open(browser)
    key = page.get_by_role("textbox", name="API key")
    await expect(key).to_have_accessible_description(
        "Fault: This is too short: 6 of at least 8 characters. It starts with ak_."
    )
    await expect(key).to_have_attribute("aria-invalid", "true")
    region = page.get_by_role("combobox", name="Region")
    await expect(region).to_have_accessible_description("Fault: Choose what applies.")
    await expect(page.get_by_role("textbox", name="User name")).to_have_value("ada <lovelace>")
    await expect(page.get_by_role("textbox", name="Private key")).to_have_value("")
    rights = page.get_by_role("group", name="Rights")
    await expect(rights.get_by_role("checkbox", name="write")).to_be_checked()
    await expect(rights.get_by_role("checkbox", name="read")).not_to_be_checked()
    await expect(page.get_by_role("checkbox", name="This is a test account")).not_to_be_checked()
    await expect(page.get_by_role("button", name="Show API key")).to_be_visible()
    assert site.complaints == []
    await page.close()


async def test_faults_are_told_first_and_lead_to_their_fields(
    pages: Renderer, browser: Browser
) -> None:
    site = Site(pages.render(view(schema_for(Acme), WRONG)))
    for with_script in (True, False):
        context = await browser.new_context(java_script_enabled=with_script)
        page = await context.new_page()
        await page.route("**/*", site.answer)
        await page.goto(f"{ORIGIN}/e/abc")
        summary = page.get_by_role("alert")
        await expect(summary).to_be_focused()
        await expect(summary).to_contain_text("What is secret was not kept here.")
        await summary.get_by_role("link", name="API key").click()
        await page.keyboard.type("ak_12345")
        await expect(page.get_by_role("textbox", name="API key")).to_have_value("ak_12345")
        await context.close()


async def test_a_secret_is_never_sent_back(pages: Renderer) -> None:
    html = pages.render(view(schema_for(Acme), WRONG))
    assert "sesame" not in html
    assert "ada &lt;lovelace&gt;" in html
    again = form_of(schema_for(Acme), values=WRONG)
    assert "sesame" not in repr(again)


async def test_a_form_without_a_fault_shows_no_summary(pages: Renderer, browser: Browser) -> None:
    site = Site(pages.render(view(schema_for(Acme))))
    page = await site.open(browser)
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(page.get_by_role("checkbox", name="read")).to_be_checked()
    await expect(page.get_by_role("checkbox", name="This is a test account")).to_be_checked()
    assert site.complaints == []
    await page.close()


@pytest.mark.parametrize("with_script", [True, False])
async def test_what_is_filled_in_arrives_as_it_was_meant(
    with_script: bool, pages: Renderer, browser: Browser
) -> None:
    schema = schema_for(Acme)
    site = Site(pages.render(view(schema)))
    context = await browser.new_context(java_script_enabled=with_script)
    page = await context.new_page()
    await page.route("**/*", site.answer)
    await page.goto(f"{ORIGIN}/e/abc")
    await page.get_by_role("textbox", name="User name").fill("ada")
    await page.get_by_role("textbox", name="API key").fill(" ak_12345 ")
    await page.get_by_role("textbox", name="Private key").fill("-- a\nb --\n")
    await page.get_by_role("combobox", name="Region").select_option("us-east")
    await page.get_by_role("checkbox", name="write").check()
    async with page.expect_request(lambda request: request.method == "POST"):
        await page.get_by_role("button", name="Save").click()
    ((path, sent),) = site.sent
    assert path == "/e/abc"
    assert sent["csrf"] == ["c5f1"]
    parsed = parse(schema, sent)
    assert parsed.faults == ()
    assert parsed.content == {
        "user": "ada",
        "api_key": "ak_12345",
        "pem": "-- a\nb --\n",
        "region": "us-east",
        "rights": ["read", "write"],
        "is_test": True,
    }
    await context.close()


async def test_no_is_said_without_filling_anything_in(pages: Renderer, browser: Browser) -> None:
    site = Site(pages.render(view(schema_for())))
    page = await site.open(browser)
    async with page.expect_request(lambda request: request.method == "POST"):
        await page.get_by_role("button", name="Decline").click()
    assert site.sent == [("/e/abc/decline", {"csrf": ["c5f1"]})]
    await page.close()


async def test_a_secret_can_be_shown_and_is_hidden_again_when_it_goes(
    pages: Renderer, browser: Browser
) -> None:
    site = Site(pages.render(view(schema_for())))
    page = await site.open(browser)
    field = page.get_by_role("textbox", name="Your answer")
    await field.fill("ak_12345")
    await expect(field).to_have_class(MASKED)
    await page.get_by_role("button", name="Show Your answer").click()
    await expect(field).not_to_have_class(MASKED)
    await page.get_by_role("button", name="Hide Your answer").click()
    await expect(field).to_have_class(MASKED)
    await page.get_by_role("button", name="Show Your answer").click()
    async with page.expect_request(lambda request: request.method == "POST"):
        await field.press("Enter")
    await expect(field).to_have_class(MASKED)
    await expect(page.get_by_role("button", name="Save")).to_have_attribute("aria-disabled", "true")
    assert site.sent[0][1]["answer.value"] == ["ak_12345"]
    assert site.complaints == []
    await page.close()


async def test_without_script_nothing_offers_to_show(pages: Renderer, browser: Browser) -> None:
    site = Site(pages.render(view(schema_for())))
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await page.route("**/*", site.answer)
    await page.goto(f"{ORIGIN}/e/abc")
    await expect(page.locator("button:visible")).to_have_text(["Save", "Decline"])
    await context.close()


async def test_no_browser_fills_in_a_password_of_its_own(pages: Renderer, browser: Browser) -> None:
    site = Site(pages.render(view(schema_for(Acme))))
    page = await site.open(browser)
    key = page.get_by_role("textbox", name="API key")
    await expect(key).to_have_attribute("autocomplete", "off")  # of text areas, which none fills in
    await expect(key).to_have_attribute("spellcheck", "false")
    # A pasted key that is too long is refused, not cut.
    await expect(page.locator("[maxlength]")).to_have_count(0)
    await page.close()


def hostile_schema(text: str) -> Schema[Any]:
    words = {"title": text, "description": text}
    choice = {"const": "a", "title": text}
    items = {"oneOf": [choice]}
    properties: dict[str, Any] = {
        "key": {"type": "string", **words},
        "shown": {"type": "string", "x-visible": True, "default": text, **words},
        "lines": {"type": "string", "format": "multiline", **words},
        "one": {"type": "string", **items, **words},
        "many": {"type": "array", "items": items, **words},
        "sure": {"type": "boolean", **words},
    }
    return schema_for({"type": "object", "properties": properties, "required": list(properties)})


@pytest.mark.parametrize("name", HOSTILE)
async def test_strangers_words_stay_words_on_a_small_phone(
    name: str, pages: Renderer, browser: Browser
) -> None:
    # Half a letter cannot stand in a schema at all, and more does not fit in one.
    text = HOSTILE[name].replace("\ud800", "")[:250]
    schema = hostile_schema(text)
    site = Site(pages.render(view(schema, {"answer.shown": [text]})))
    page = await site.open(browser, viewport={"width": 320, "height": 640})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 320
    assert await page.locator("script, img, main a:not([href^='#answer-'])").count() == 1
    assert await page.evaluate("[...document.querySelectorAll('main *')].every((e) => !e.onerror)")
    labels = await page.locator("label:visible, legend").all_inner_texts()
    assert all(0 < len(label) <= 100 for label in labels)
    assert site.complaints == []
    await page.close()


async def test_the_page_fits_and_can_be_pressed_in_both_schemes(
    pages: Renderer, browser: Browser
) -> None:
    for sent in (None, WRONG):
        site = Site(pages.render(view(schema_for(Acme), sent)))
        page = await site.open(browser)
        for width in (390, 1280):
            await page.set_viewport_size({"width": width, "height": 844})
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme)
                assert await page.evaluate("document.documentElement.scrollWidth") <= width
                for target in await page.locator("button:visible, .tick label").all():
                    box = await target.bounding_box()
                    assert box is not None
                    assert box["height"] >= 44
        await page.close()
