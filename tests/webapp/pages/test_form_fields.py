"""The fields of a form: autofill, one line, dates with a time zone, and the focus."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qs

import pytest
from playwright.async_api import Browser, expect

from flows.errors import InvalidSchema
from flows.schema.schema import Schema, parse, schema_of, with_secrets
from tests.support.page_site import ORIGIN, Site, visit
from tests.support.page_views import Shown, usual
from webapp.pages.form import FormField, form_of, with_zones
from webapp.pages.renderer import Renderer
from webapp.pages.views_forms import StartForm, StartSecret

MOMENT = {"type": "string", "format": "date-time", "title": "When"}


def of(**properties: Any) -> Schema[Any]:
    return schema_of({"type": "object", "properties": properties, "required": list(properties)})


def field_of(found: Mapping[str, Any], *values: str) -> FormField:
    sent = {"answer.a": list(values)} if values else None
    (field,) = form_of(of(a=found), values=sent).fields
    return field


@pytest.mark.parametrize(
    ("found", "token"),
    [
        ({"type": "string", "format": "email"}, "email"),
        ({"type": "string", "format": "uri"}, "url"),
        ({"type": "string", "autocomplete": "given-name"}, "given-name"),
        ({"type": "string", "autocomplete": "shipping postal-code"}, "shipping postal-code"),
        ({"enum": ["DE", "FR"], "autocomplete": "country"}, "country"),
        ({"type": "string"}, "on"),
    ],
)
def test_autofill_token_comes_from_schema(
    found: Mapping[str, Any], token: str, shown: Shown
) -> None:
    # finding: XP9
    page = shown(usual(StartForm, form=form_of(of(a=found))))
    controls = [
        one for tag in ("input", "select") for one in page.named(tag) if one.get("id") == "answer-1"
    ]
    assert [one["autocomplete"] for one in controls] == [token]


@pytest.mark.parametrize(
    "token", ["cc-number", "current-password", "one-time-code", "off", "", "home tel", "x y email"]
)
def test_unknown_or_sensitive_autofill_token_is_refused(token: str) -> None:
    # finding: XP9
    with pytest.raises(InvalidSchema, match=r"\$\.properties\.a\.autocomplete"):
        of(a={"type": "string", "autocomplete": token})


@pytest.mark.parametrize(
    ("found", "values", "control"),
    [
        ({"type": "string"}, (), "input"),
        ({"type": "string", "maxLength": 40}, (), "input"),
        ({"type": "string", "maxLength": 4000}, (), "textarea"),
        ({"type": "string", "format": "multiline"}, (), "textarea"),
        ({"type": "string", "default": "a\nb"}, (), "textarea"),
        ({"type": "string"}, ("a\r\nb",), "textarea"),
    ],
)
def test_text_of_one_line_is_an_input(
    found: Mapping[str, Any], values: Sequence[str], control: str
) -> None:
    # finding: XP9
    assert field_of(found, *values).control == control


# finding: XP1
@pytest.mark.parametrize("more", [{}, {"maxLength": 4000}, {"format": "password"}])
def test_secret_of_any_length_is_a_password_field(more: Mapping[str, Any], shown: Shown) -> None:
    schema = with_secrets(of(a={"type": "string", **more}))
    page = shown(usual(StartSecret, form=form_of(schema)))
    assert [one["type"] for one in page.named("input") if one.get("id") == "answer-1"] == [
        "password"
    ]
    assert page.named("textarea") == []


@pytest.mark.parametrize(
    ("typed", "zone", "value"),
    [
        ("2031-05-28T14:30", "Europe/Berlin", "2031-05-28T14:30:00+02:00"),
        ("2031-12-28T14:30", "Europe/Berlin", "2031-12-28T14:30:00+01:00"),
        ("2031-05-28 14:30", "Asia/Kathmandu", "2031-05-28T14:30:00+05:45"),
        ("2031-05-28T14:30:12", "UTC", "2031-05-28T14:30:12+00:00"),
        ("2031-05-28T14:30+03:00", "Europe/Berlin", "2031-05-28T14:30:00+03:00"),
        # Clocks are set back, so this time occurs twice: the first one is sent.
        ("2031-10-26T02:30", "Europe/Berlin", "2031-10-26T02:30:00+02:00"),
    ],
)
def test_time_in_chosen_zone_is_sent_with_its_offset(typed: str, zone: str, value: str) -> None:
    # finding: XP10
    schema = of(a=MOMENT)
    form, faults = with_zones(schema, {"answer.a": [typed], "zone.a": [zone]})
    assert faults == ()
    assert parse(schema, form).content == {"a": value}


@pytest.mark.parametrize("first", ["", "soon", "2031-05-28"])
def test_time_after_empty_or_unreadable_time_is_sent_with_its_offset(first: str) -> None:
    schema = of(a=MOMENT, b=MOMENT)
    sent = {"answer.a": [first], "answer.b": ["2031-05-28T14:30"], "zone.b": ["Asia/Tokyo"]}
    form, faults = with_zones(schema, sent)
    assert faults == ()
    assert form["answer.b"] == ["2031-05-28T14:30:00+09:00"]


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        ({"answer.a": ["2031-05-28T14:30"]}, "Choose the time zone."),
        ({"answer.a": ["2031-05-28T14:30"], "zone.a": [""]}, "Choose the time zone."),
        *(
            ({"answer.a": ["2031-05-28T14:30"], "zone.a": [zone]}, "Choose the time zone.")
            for zone in ("../../etc/passwd", "right/UTC", "Mars/Base", "x" * 4000)
        ),
        ({"answer.a": ["2031-03-30T02:30"], "zone.a": ["Europe/Berlin"]}, "Clocks skip this time"),
        ({"answer.a": ["2031-05-28"], "zone.a": ["UTC"]}, "Write a date and a time"),
        ({"answer.a": ["soon"], "zone.a": ["UTC"]}, "Write a date and a time"),
        ({"answer.a": ["0001-01-01T00:00"], "zone.a": ["Asia/Tokyo"]}, "Write a date and a time"),
        ({"zone.a": ["UTC"]}, "Fill this in."),
    ],
)
def test_time_without_clear_moment_is_refused_and_stays(
    sent: dict[str, list[str]], says: str
) -> None:
    # finding: XP10
    schema = of(a=MOMENT)
    form, faults = with_zones(schema, sent)
    (field,) = form_of(schema, values=sent, faults=[*faults, *parse(schema, form).faults]).fields
    assert field.fault is not None
    assert field.fault.startswith(says)
    assert field.value == "".join(sent.get("answer.a", []))
    assert field.zone_name == "zone.a"
    chosen = [zone.value for zone in field.zones if zone.is_chosen]
    assert chosen in ([], sent.get("zone.a"))


def test_default_time_is_shown_in_utc() -> None:
    # finding: XP10
    field = field_of({**MOMENT, "default": "2031-05-28T14:30:00+02:00"})
    assert field.value == "2031-05-28T12:30"
    assert [zone.value for zone in field.zones if zone.is_chosen] == ["UTC"]


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize("with_script", [True, False])
async def test_time_zone_is_preset_by_the_browser_or_chosen_by_the_person(
    with_script: bool, pages: Renderer, browser: Browser
) -> None:
    # finding: XP10
    schema = of(a=MOMENT)
    site = Site(html=pages.render(usual(StartForm, form=form_of(schema))), form_targets="")
    options = {"timezone_id": "America/Guyana", "java_script_enabled": with_script}
    async with visit(browser, site, **options) as page:
        await page.goto(f"{ORIGIN}/e/abc")
        when, zone = page.get_by_label("When", exact=True), page.get_by_label("Time zone of When")
        await expect(when).to_have_attribute("type", "datetime-local")
        # finding: XP19
        await expect(when).to_be_focused()
        await expect(zone).to_have_value("America/Guyana" if with_script else "")
        await when.fill("2031-05-28T14:30")
        if not with_script:
            await zone.select_option("Asia/Tokyo")
        async with page.expect_request(lambda request: request.method == "POST"):
            await page.get_by_role("button", name="Send").click()
    sent = parse_sent(site)
    form, faults = with_zones(schema, sent)
    assert faults == ()
    when_sent = datetime.fromisoformat(str(parse(schema, form).content["a"])).astimezone(UTC)
    assert when_sent == datetime(2031, 5, 28, 18 if with_script else 5, 30, tzinfo=UTC)
    assert site.complaints == []


def parse_sent(site: Site) -> dict[str, list[str]]:
    (body,) = (body for method, _, body in site.requests if method == "POST")
    return parse_qs(body or "", keep_blank_values=True)
