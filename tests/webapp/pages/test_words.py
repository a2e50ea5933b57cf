"""The text of the pages as HTML, without a browser, for text of every origin."""

import re
from dataclasses import fields, replace
from datetime import timedelta
from itertools import pairwise
from typing import get_args

import pytest

from flows.question import MESSAGE_AT_MOST
from tests.support.markup import Page
from tests.support.page_views import HOSTILE, NOW, Rendered, Shown, usual
from webapp.pages.renderer import Renderer, template_folder, without_hash
from webapp.pages.views import Done, Ended, Ending, Finishing, Late, StartUrl, View, Waiting
from webapp.pages.views_forms import InboxPage, StartDecision
from webapp.pages.views_openers import (
    BeforeOpener,
    Closed,
    CodeButton,
    CodePage,
    SignInButton,
    SomeoneElse,
)
from webapp.pages.views_own import Home

AWAY = "away"  # class of a form that is sent to another site, and so has no CSRF token
INVISIBLE = re.compile(  # control, bidirectional and tag characters
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e"
    r"\u2066-\u2069\ufeff\ud800-\udfff\U000e0000-\U000e007f]"
)


@pytest.fixture
def start() -> StartUrl:
    return usual(StartUrl)


def test_every_page_has_doctype_language_viewport_title_and_one_main_element(
    all_pages: Rendered,
) -> None:
    for name, (_, page) in all_pages.items():
        assert page.html.encode().startswith(b"<!doctype html>"), name
        assert page.named("html") == [{"lang": "en", "dir": "ltr"}], name
        assert any(meta.get("name") == "viewport" for meta in page.named("meta")), name
        assert page.text("title").strip(), name
        assert len(page.named("main")) == 1, name


def test_headings_are_in_order(all_pages: Rendered) -> None:
    for name, (_, page) in all_pages.items():
        levels = [int(tag[1]) for tag, _ in page.elements if tag in "h1h2h3h4"]
        assert levels.count(1) == 1, name
        assert levels[0] == 1, name
        assert all(later <= earlier + 1 for earlier, later in pairwise(levels)), name


def test_page_has_no_inline_code_and_no_external_resources(all_pages: Rendered) -> None:
    for name, (_, page) in all_pages.items():
        assert page.named("style") == [], name
        (script,) = page.named("script")
        assert without_hash(script["src"]) == "/static/elicit.js", name
        assert script["defer"] == "", name
        assert page.text("script") == "", name
        for tag, attributes in page.elements:
            assert not any(key == "style" or key.startswith("on") for key in attributes), name
            # A link to another site.
            if tag == "a" and attributes.get("rel") == "noopener noreferrer":
                assert attributes["href"].startswith("https://"), name
                continue
            if tag == "form" and attributes.get("class") == AWAY:
                assert attributes["action"].startswith("https://"), name
                continue
            for key in ("src", "href", "action", "data-live", "data-here"):
                assert re.match(r"/(?!/)|#", attributes.get(key, "/")), name


def test_hostile_text_creates_no_elements_and_no_reordering(
    hostile_pages: Rendered, pages: Renderer
) -> None:
    views = {type(view) for view, _ in hostile_pages.values()}
    tame = {view: {tag for tag, _ in Page(pages.render(usual(view))).elements} for view in views}
    for name, (view, page) in hostile_pages.items():
        assert {tag for tag, _ in page.elements} <= tame[type(view)], name
        assert not INVISIBLE.search(page.html), name


def test_technical_terms_are_not_shown(usual_pages: Rendered) -> None:
    for name, (_, page) in usual_pages.items():
        words = page.text().lower()
        for word in ("elicitation", "oauth", "token", "callback"):
            assert word not in words, name


def test_every_form_is_post_with_csrf_token(usual_pages: Rendered) -> None:
    for name, (_, page) in usual_pages.items():
        forms = page.named("form")
        assert all(form["method"] == "post" for form in forms), name
        own_forms = [form for form in forms if form.get("class") != AWAY]
        marks = [field for field in page.named("input") if field["name"] == "csrf"]
        hidden = {"type": "hidden", "name": "csrf", "value": "c5f1"}
        assert marks == [hidden] * len(own_forms), name
        submits = [button for button in page.named("button") if button["type"] == "submit"]
        assert len(submits) == len(forms), name


def test_page_has_single_primary_button_at_most(usual_pages: Rendered) -> None:
    for name, (_, page) in usual_pages.items():
        classes = [attributes.get("class", "") for _, attributes in page.elements]
        assert sum("primary" in names.split() for names in classes) <= 1, name


def test_every_visible_field_has_label(usual_pages: Rendered) -> None:
    for name, (_, page) in usual_pages.items():
        labelled = {label["for"] for label in page.named("label")}
        seen = [field for field in page.named("input") if field["type"] != "hidden"]
        assert all(field["id"] in labelled for field in seen), name


def test_start_page_names_asker_reason_destination_time_and_decline(
    start: StartUrl, shown: Shown
) -> None:
    page = shown(start)
    assert page.text("h1") == "Go to example.org for my tools?"
    body = " ".join(page.text("main").split())
    assert "to use Book a table of my tools (tools.example.com), 12 seconds ago." in body
    assert "You asked Claude Desktop (https://assistant.example/client) to use" in body
    assert "Next: https://example.org" in body
    assert "Your assistant does not see that site." in body
    assert "4 minutes, until 21:34 UTC" in body
    assert page.actions() == ["/e/abc/go", "/e/abc/decline"]
    assert "Continue to example.org" in body
    assert "Decline" in body


def test_message_of_tool_is_quoted_with_its_lines(start: StartUrl, shown: Shown) -> None:
    page = shown(start)
    assert page.text("blockquote") == start.message
    assert "blockquote" not in {tag for tag, _ in shown(replace(start, message=" \n")).elements}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_quoted_message_is_limited_and_never_link(text: str, start: StartUrl, shown: Shown) -> None:
    page = shown(replace(start, message=text))
    quotation = page.text("blockquote")
    assert len(quotation) <= MESSAGE_AT_MOST
    assert quotation.count("\n") < 12
    assert page.named("a") == []


def test_bidi_override_is_replaced_with_visible_character(start: StartUrl, shown: Shown) -> None:
    page = shown(replace(start, message="pay \u202e001 EUR"))
    assert page.text("blockquote") == "pay \ufffd001 EUR"


def test_stacked_combining_marks_are_limited(start: StartUrl, shown: Shown) -> None:
    page = shown(replace(start, message="a" + "\u0301" * 400))
    assert page.text("blockquote") == "a" + "\u0301" * 3


@pytest.mark.parametrize(
    ("origin", "named"),
    [
        ("https://example.org", "https://example.org"),
        ("https://EXAMPLE.org:8443", "https://example.org:8443"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("https://straße.example", "https://xn--strae-oqa.example"),
        ("https://\u0430pple.example", "https://xn--pple-43d.example"),
        ("https://paypal.com@evil.example", "https://evil.example"),
        ("http://[::1]:8000", "http://[::1]:8000"),
        ("https://☃️.\u202eexample", None),
        ("javascript:alert(1)", "javascript:alert(1)"),
        ("https://[bad", "https://[bad"),
    ],
)
def test_next_address_is_shown_as_the_browser_will_open_it(
    origin: str, named: str | None, start: StartUrl, shown: Shown
) -> None:
    page = shown(replace(start, origins=(origin,)))
    section = page.text("section")
    assert section.isascii()
    if named is not None:
        assert section.split()[1] == named


def test_long_address_is_shown_completely_but_not_on_button(start: StartUrl, shown: Shown) -> None:
    host = ".".join(["accounts-google-com"] * 8 + ["evil", "example"])
    page = shown(replace(start, origins=(f"https://{host}",)))
    assert f"https://{host}" in page.text("section")
    assert "Continue to another site" in page.text("button")


def test_several_addresses_are_all_shown(start: StartUrl, shown: Shown) -> None:
    origins = ("https://one.example", "https://two.example")
    page = shown(replace(start, origins=origins))
    assert all(origin in page.text("section") for origin in origins)
    assert "Next, one of these:" in page.text("section")


@pytest.mark.parametrize(
    ("passed", "words"),
    [
        (-5, "just now"),
        (1, "just now"),
        (2, "2 seconds ago"),
        (59, "59 seconds ago"),
        (60, "1 minute ago"),
        (7199, "119 minutes ago"),
        (7200, "2 hours ago"),
        (86400 * 3, "3 days ago"),
    ],
)
def test_elapsed_time_is_shown_in_words(
    passed: int, words: str, start: StartUrl, shown: Shown
) -> None:
    view = replace(start, asked_at=NOW - timedelta(seconds=passed))
    assert f", {words}." in shown(view).text("p")


def test_expired_time_is_zero_and_expiry_on_another_day_shows_its_date(
    start: StartUrl, shown: Shown
) -> None:
    late = shown(replace(start, expires_at=NOW - timedelta(seconds=3)))
    assert [e["data-left"] for e in late.named("span") if "data-left" in e] == ["0"]
    assert "0 seconds" in late.text("dd")
    long = shown(replace(start, expires_at=NOW + timedelta(days=3)))
    assert "3 days, until 2025-11-24 21:30 UTC" in long.text("dd")


def test_waiting_page_announces_status_and_works_without_javascript(pages: Renderer) -> None:
    assert Page(pages.render(usual(Waiting))).text("h1") == "Waiting for GitHub…"
    page = Page(pages.render(usual(Waiting, provider=None)))
    assert page.text("h1") == "Waiting for example.org…"
    (live,) = [element for element in page.named("p") if "data-live" in element]
    assert (live["aria-live"], live["data-live"], live["data-status"]) == (
        "polite",
        "/e/abc/live",
        "opened",
    )
    assert [link["href"] for link in page.named("a")] == ["/e/abc"]
    assert page.actions() == ["/e/abc/go", "/e/abc/decline"]


@pytest.mark.parametrize("ending", get_args(Ending))
def test_ended_page_says_nothing_was_shared_or_charged(ending: Ending, shown: Shown) -> None:
    text = shown(Ended(server="my tools", ending=ending)).text("main")
    assert "Nothing was shared" in text
    assert "nothing was charged" in text


def test_late_page_says_nothing_will_be_asked_twice(shown: Shown) -> None:
    text = shown(Late(server="my tools")).text("main")
    assert "Done. Ask your assistant to continue" in text
    assert "Nothing is lost, and you will not be asked or charged again" in text


def test_pages_distinguish_other_person_from_other_browser(shown: Shown) -> None:
    person = shown(SomeoneElse(server="my tools", other="person")).text("h1")
    browser = shown(SomeoneElse(server="my tools", other="browser")).text("h1")
    assert person == "This link belongs to someone else"
    assert browser == "This link was opened in another browser"


def test_views_before_identification_cannot_contain_details() -> None:
    reported = {
        field.name for view in (BeforeOpener, SignInButton, CodeButton) for field in fields(view)
    }
    assert reported == {"server", "for_user", "kind", "why", "sign_in", "sign_in_at", "code"} | {
        *("action", "back", "came_late", "csrf", "issuer", "others", "switch", "updates")
    }


def test_home_shows_settings_which_programs_can_parse(shown: Shown) -> None:
    home = Home(server="O'Brien & <Söhne>", mcp_url="http://127.0.0.1:8765/mcp?a=1&b='2'", tools=())
    text = shown(home).text("pre")
    assert home.vscode_settings in text
    assert home.cursor_settings in text
    assert "claude mcp add --transport http o-brien-s-hne 'http://127.0.0.1:8765/mcp?a=1" in text


def test_folder_of_operator_replaces_single_templates(tmp_path, start: StartUrl) -> None:
    # parity: L12
    (tmp_path / "done.html").write_text(
        '{% extends "notice.html" %}{% block title %}All set, {{ view.server }}{% endblock %}'
    )
    pages = Renderer(folders=[tmp_path, template_folder()])
    done = Page(pages.render(Done(server="a\u202e<b>")))
    assert done.text("h1") == "All set, a\ufffd<b>"
    assert "Go to example.org" in Page(pages.render(start)).text("h1")


def test_every_template_is_used() -> None:
    templates = sorted(template_folder().iterdir())
    code = (template_folder().parent / "webapp").rglob("*.py")
    words = "".join(path.read_text() for path in [*templates, *code])
    assert [path.name for path in templates if f'"{path.name}"' not in words] == []


def test_inbox_with_older_requests_does_not_say_nothing_is_waiting(shown: Shown) -> None:
    inbox = usual(InboxPage)
    (full,) = inbox.lists
    latest = shown(replace(inbox, lists=(replace(full, waiting=()),))).text("main")
    assert "Nothing is waiting." not in latest
    assert "None of the latest requests is still waiting." in latest
    empty = replace(full, waiting=(), more_waiting=None)
    assert "Nothing is waiting." in shown(replace(inbox, lists=(empty,))).text("main")


@pytest.mark.parametrize("view", [Waiting, Finishing, StartDecision, CodePage])
def test_page_that_updates_itself_shows_its_check_link_as_secondary_button(
    view: type[View], shown: Shown
) -> None:
    # finding: XP19
    page = shown(usual(view))
    assert [link["class"] for link in page.named("a") if link.get("href") == "/e/abc"] == ["button"]
    assert "Check now" not in page.text("button")


@pytest.mark.parametrize(
    ("why", "html"),
    [
        ("Type `elicit pair` here.", 'Type <code translate="no">elicit pair</code> here.'),
        ("`<b>` & `\u202e`", '<code translate="no">&lt;b&gt;</code> &amp; '),
        ("A single ` stays", "A single ` stays"),
    ],
)
def test_reason_shows_commands_as_code(why: str, html: str, pages: Renderer) -> None:
    # finding: XP19
    for view in (usual(BeforeOpener, sign_in=None, code=None), usual(Closed, sign_in=None)):
        assert f"<p>{html}" in pages.render(replace(view, why=why))
