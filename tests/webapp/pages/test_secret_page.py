"""The page for a secret: labelled controls, no secret sent back, untrusted text marked as such."""

import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs

import pytest
from playwright.async_api import Browser, Page, expect
from pydantic import BaseModel, Field, SecretStr

from flows import elicit
from flows.kinds.secret import Secret
from flows.schema.schema import Schema, parse
from tests.support.page_site import ORIGIN, Site
from tests.support.page_views import HOSTILE, NOW
from webapp.pages.form import form_of
from webapp.pages.renderer import Renderer
from webapp.pages.views_forms import StartSecret

pytestmark = pytest.mark.asyncio(loop_scope="session")

PEM = "-- a\nb --\n"


class Acme(BaseModel):
    user: Annotated[str, Field(title="User name")]
    api_key: Annotated[
        SecretStr, Field(title="API key", description="It starts with ak_.", min_length=8)
    ]
    pem: Annotated[SecretStr, Field(title="Private key", max_length=4000)]
    host: Annotated[str, Field(title="Server", max_length=80)] = "acme.example.com"
    region: Literal["eu-west", "us-east"]
    rights: list[Literal["read", "write"]] = ["read"]
    is_test: Annotated[bool, Field(title="This is a test account")] = True


def own_site(html: str) -> Site:
    """Return a site whose form can be sent to this server only."""
    return Site(html=html, form_targets="")


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
    "answer.host": ["ada.example.com"],
    "answer.rights": ["1"],
}


async def paste(page: Page, text: str, *, into: str) -> None:
    await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    await page.evaluate("(text) => navigator.clipboard.writeText(text)", text)
    await page.get_by_role("textbox", name=into).focus()
    await page.keyboard.press("Control+V")


async def spoken(page: Page) -> str:
    """Return everything that a screen reader reads of the page."""
    session = await page.context.new_cdp_session(page)
    return json.dumps(await session.send("Accessibility.getFullAXTree"), ensure_ascii=False)


async def opened(site: Site, browser: Browser, **options: Any) -> Page:
    page = await browser.new_page(**options)
    await site.watch(page)
    await page.goto(f"{ORIGIN}/e/abc")
    return page


def posted(site: Site) -> list[tuple[str, dict[str, list[str]]]]:
    return [
        (path, parse_qs(body or "", keep_blank_values=True))
        for method, path, body in site.requests
        if method == "POST"
    ]


async def test_every_control_has_label_description_and_error(
    pages: Renderer, browser: Browser
) -> None:
    site = own_site(pages.render(view(schema_for(Acme), WRONG)))
    page = await opened(site, browser)
    key = page.get_by_role("textbox", name="API key")
    await expect(key).to_have_accessible_description(
        "Error: This is too short: 6 of at least 8 characters. It starts with ak_."
    )
    await expect(key).to_have_attribute("aria-invalid", "true")
    region = page.get_by_role("combobox", name="Region")
    await expect(region).to_have_accessible_description("Error: Choose what applies.")
    await expect(page.get_by_role("textbox", name="User name")).to_have_value("ada <lovelace>")
    await expect(page.get_by_role("textbox", name="Private key")).to_have_value("")
    rights = page.get_by_role("group", name="Rights")
    await expect(rights.get_by_role("checkbox", name="write")).to_be_checked()
    await expect(rights.get_by_role("checkbox", name="read")).not_to_be_checked()
    await expect(page.get_by_role("checkbox", name="This is a test account")).not_to_be_checked()
    await expect(page.get_by_role("button", name="Show API key")).to_be_visible()
    assert site.complaints == []
    await page.close()


async def test_errors_are_announced_first_and_link_to_fields(
    pages: Renderer, browser: Browser
) -> None:
    site = own_site(pages.render(view(schema_for(Acme), WRONG)))
    for with_script in (True, False):
        context = await browser.new_context(java_script_enabled=with_script)
        page = await context.new_page()
        await site.watch(page)
        await page.goto(f"{ORIGIN}/e/abc")
        summary = page.get_by_role("alert")
        await expect(summary).to_be_focused()
        await expect(summary).to_contain_text("Secret values weren't saved here.")
        await summary.get_by_role("link", name="API key").click()
        await page.keyboard.type("ak_12345")
        await expect(page.get_by_role("textbox", name="API key")).to_have_value("ak_12345")
        await context.close()


async def test_submitted_secret_is_never_sent_back(pages: Renderer) -> None:
    html = pages.render(view(schema_for(Acme), WRONG))
    assert "sesame" not in html
    # finding: XP2
    assert "ada &lt;lovelace&gt;" in html
    assert "ada.example.com" in html
    again = form_of(schema_for(Acme), values=WRONG)
    assert "sesame" not in repr(again)


async def test_form_without_error_shows_no_summary(pages: Renderer, browser: Browser) -> None:
    site = own_site(pages.render(view(schema_for(Acme))))
    page = await opened(site, browser)
    await expect(page.get_by_role("alert")).to_have_count(0)
    await expect(page.get_by_role("checkbox", name="read")).to_be_checked()
    await expect(page.get_by_role("checkbox", name="This is a test account")).to_be_checked()
    assert site.complaints == []
    await page.close()


async def test_secrets_are_hidden_and_other_fields_have_defaults(
    pages: Renderer, browser: Browser
) -> None:
    # finding: XP2
    site = own_site(pages.render(view(schema_for(Acme))))
    page = await opened(site, browser)
    for label, kind, value in (
        ("User name", "text", ""),
        ("Server", "text", "acme.example.com"),
        ("API key", "password", ""),
        ("Private key", "password", ""),
    ):
        field = page.get_by_role("textbox", name=label)
        await expect(field).to_have_attribute("type", kind)
        await expect(field).to_have_value(value)
    await expect(page.locator("[data-reveal]")).to_have_count(2)
    await page.close()


async def test_screen_reader_receives_no_character_of_secret(
    pages: Renderer, browser: Browser
) -> None:
    # finding: XP1
    site = own_site(pages.render(view(schema_for(Acme))))
    page = await opened(site, browser)
    await page.get_by_role("textbox", name="User name").fill("ada")
    await page.get_by_role("textbox", name="API key").fill("sk-LIVE-topsecret")
    await paste(page, "-- open\nsesame --", into="Private key")
    await expect(page.get_by_role("status")).to_contain_text(["2 lines were pasted"])
    received = await spoken(page)
    assert "ada" in received
    assert "•" * len("sk-LIVE-topsecret") in received
    assert "topsecret" not in received
    assert "sesame" not in received
    assert "sesame" not in await page.content()
    assert site.complaints == []
    await page.close()


async def test_pasted_lines_are_submitted_unchanged_until_edited(
    pages: Renderer, browser: Browser
) -> None:
    # finding: XP1
    schema = schema_for({"type": "object", "properties": {"pem": {"type": "string"}}})
    for more, arrives in (("", PEM), ("x", "-- a b --x")):
        site = own_site(pages.render(view(schema)))
        page = await opened(site, browser)
        await paste(page, PEM, into="Pem")
        await page.keyboard.type(more)
        async with page.expect_response(lambda response: response.request.method == "POST"):
            await page.keyboard.press("Enter")
        assert parse(schema, posted(site)[0][1]).content == {"pem": arrives}
        await page.close()


async def test_multiline_secret_is_visible_and_page_says_so(
    pages: Renderer, browser: Browser
) -> None:
    # finding: XP1
    schema = schema_for(
        {"type": "object", "properties": {"pem": {"type": "string", "format": "multiline"}}}
    )
    for with_script in (True, False):
        site = own_site(pages.render(view(schema)))
        context = await browser.new_context(java_script_enabled=with_script)
        page = await context.new_page()
        await site.watch(page)
        await page.goto(f"{ORIGIN}/e/abc")
        pem = page.get_by_role("textbox", name="Pem")
        await expect(pem).to_have_accessible_description(
            "This field does not hide what you type: check that nobody else sees your screen."
        )
        await pem.fill(PEM)
        async with page.expect_request(lambda request: request.method == "POST"):
            await page.get_by_role("button", name="Save").click()
        assert parse(schema, posted(site)[0][1]).content == {"pem": PEM}
        await context.close()


@pytest.mark.parametrize("with_script", [True, False])
async def test_filled_form_is_submitted_as_intended(
    with_script: bool, pages: Renderer, browser: Browser
) -> None:
    schema = schema_for(Acme)
    site = own_site(pages.render(view(schema)))
    context = await browser.new_context(java_script_enabled=with_script)
    page = await context.new_page()
    await site.watch(page)
    await page.goto(f"{ORIGIN}/e/abc")
    await page.get_by_role("textbox", name="User name").fill("ada")
    await page.get_by_role("textbox", name="API key").fill(" ak_12345 ")
    await page.get_by_role("textbox", name="Private key").fill("-- a b --")
    await page.get_by_role("combobox", name="Region").select_option("us-east")
    await page.get_by_role("checkbox", name="write").check()
    async with page.expect_request(lambda request: request.method == "POST"):
        await page.get_by_role("button", name="Save").click()
    ((path, sent),) = posted(site)
    assert path == "/e/abc"
    assert sent["csrf"] == ["c5f1"]
    parsed = parse(schema, sent)
    assert parsed.faults == ()
    assert parsed.content == {
        "user": "ada",
        "api_key": "ak_12345",
        "pem": "-- a b --",
        "host": "acme.example.com",
        "region": "us-east",
        "rights": ["read", "write"],
        "is_test": True,
    }
    await context.close()


async def test_decline_needs_no_input(pages: Renderer, browser: Browser) -> None:
    site = own_site(pages.render(view(schema_for())))
    page = await opened(site, browser)
    async with page.expect_request(lambda request: request.method == "POST"):
        await page.get_by_role("button", name="Decline").click()
    assert posted(site) == [("/e/abc/decline", {"csrf": ["c5f1"]})]
    await page.close()


async def test_secret_can_be_revealed_and_is_hidden_on_submit(
    pages: Renderer, browser: Browser
) -> None:
    site = own_site(pages.render(view(schema_for())))
    page = await opened(site, browser)
    field = page.get_by_role("textbox", name="Your answer")
    await field.fill("ak_12345")
    await expect(field).to_have_attribute("type", "password")
    await page.get_by_role("button", name="Show Your answer").click()
    await expect(field).to_have_attribute("type", "text")
    await page.get_by_role("button", name="Hide Your answer").click()
    await expect(field).to_have_attribute("type", "password")
    await page.get_by_role("button", name="Show Your answer").click()
    async with page.expect_request(lambda request: request.method == "POST"):
        await field.press("Enter")
    await expect(field).to_have_attribute("type", "password")
    await expect(page.get_by_role("button", name="Save")).to_have_attribute("aria-disabled", "true")
    assert posted(site)[0][1]["answer.value"] == ["ak_12345"]
    assert site.complaints == []
    await page.close()


async def test_reveal_button_is_hidden_without_javascript(
    pages: Renderer, browser: Browser
) -> None:
    site = own_site(pages.render(view(schema_for())))
    context = await browser.new_context(java_script_enabled=False)
    page = await context.new_page()
    await site.watch(page)
    await page.goto(f"{ORIGIN}/e/abc")
    await expect(page.get_by_text("Without JavaScript this field takes one line")).to_be_visible()
    await expect(page.locator("button:visible")).to_have_text(["Save", "Decline"])
    await context.close()


async def test_browser_does_not_autofill_password(pages: Renderer, browser: Browser) -> None:
    site = own_site(pages.render(view(schema_for(Acme))))
    page = await opened(site, browser)
    key = page.get_by_role("textbox", name="API key")
    await expect(key).to_have_attribute("autocomplete", "new-password")
    await expect(key).to_have_attribute("spellcheck", "false")
    # A pasted key that is too long is refused instead of truncated.
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
async def test_hostile_text_stays_text_on_small_phone(
    name: str, pages: Renderer, browser: Browser
) -> None:
    # A schema cannot contain a lone surrogate, and limits the length of a text.
    text = HOSTILE[name].replace("\ud800", "")[:250]
    schema = hostile_schema(text)
    site = own_site(pages.render(view(schema, {"answer.shown": [text]})))
    page = await opened(site, browser, viewport={"width": 320, "height": 640})
    assert await page.evaluate("document.documentElement.scrollWidth") <= 320
    assert await page.locator("script, img, main a:not([href^='#answer-'])").count() == 1
    assert await page.evaluate("[...document.querySelectorAll('main *')].every((e) => !e.onerror)")
    labels = await page.locator("label:visible, legend").all_inner_texts()
    assert all(0 < len(label) <= 300 for label in labels)
    assert site.complaints == []
    await page.close()


async def test_page_fits_and_has_large_targets_in_both_schemes(
    pages: Renderer, browser: Browser
) -> None:
    for sent in (None, WRONG):
        site = own_site(pages.render(view(schema_for(Acme), sent)))
        page = await opened(site, browser)
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
