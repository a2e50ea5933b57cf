"""The languages of the pages: catalogues, pseudo-locales on every page, and negotiation."""

import re
from dataclasses import fields, is_dataclass, replace
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po

from tests.messages import english_templates, extracted, updated
from tests.support.markup import Page
from tests.support.page_states import page_states
from tests.support.page_views import VIEWS, usual
from tests.support.pseudo_languages import PSEUDO
from webapp.languages import (
    CATALOGUES,
    ENGLISH,
    FROM_CODE,
    Language,
    fault_of,
    language_in,
    languages_of,
    negotiated,
)
from webapp.pages import views
from webapp.pages.form import form_of
from webapp.pages.renderer import Renderer, template_folder
from webapp.pages.views import BadRequest, Ended, StartPayment, TooFast
from webapp.pages.views_forms import StartForm

PAGES = Renderer(folders=[template_folder()])
GERMAN = language_in(CATALOGUES / "de.po")
WORD = re.compile("[A-Za-z]{2,}")


class _Seen(HTMLParser):
    """The texts of a page that a person reads or hears, other than code and addresses."""

    SPOKEN = ("aria-label", "alt", "title", "placeholder", "data-listening", "data-moving")
    SCRIPTED = ("data-copied", "data-hide", "data-pasted")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self._inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.texts += [
            value for name, value in attrs if name in self.SPOKEN + self.SCRIPTED and value
        ]
        is_code = tag in ("code", "pre", "script", "option") or ("translate", "no") in attrs
        if is_code or tag in self._inside:
            self._inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self._inside and self._inside[-1] == tag:
            self._inside.pop()

    def handle_data(self, data: str) -> None:
        if not self._inside:
            self.texts.append(data)


def texts_of(value: object) -> set[str]:
    """Return all texts in a value: those of the author, names and addresses."""
    if isinstance(value, str):
        host = {value.partition("://")[2]} if "://" in value else set[str]()
        return {" ".join(value.split()), *map(str.strip, value.split("\n")), *host}
    if isinstance(value, dict):
        return set().union(*(texts_of(each) for each in value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return set().union(*(texts_of(each) for each in value))
    names = [f.name for f in fields(value)] if is_dataclass(value) else []
    names += getattr(value, "__struct_fields__", ())
    return set().union(*(texts_of(getattr(value, name)) for name in names))


def rest_of(text: str, known: set[str]) -> str:
    """Return the text without the known texts."""
    text = " ".join(text.split())
    for one in sorted(known, key=len, reverse=True):
        text = text.replace(one, " ") if WORD.search(one) else text
    return text


@pytest.mark.parametrize("language", PSEUDO.values(), ids=PSEUDO)
@pytest.mark.parametrize("for_user", [False, True], ids=["assistant", "application"])
def test_every_page_has_no_text_that_a_catalogue_cannot_translate(
    language: Language, for_user: bool
) -> None:
    left: dict[str, set[str]] = {}
    for name, view in page_states().items():
        if not view.is_translated:
            continue
        html = PAGES.render(replace(view, for_user=for_user), language)
        known = texts_of(view) | {"UTC", "{number}"}  # the script fills in the number
        texts = {rest_of(text, known) for text in _Seen(html).texts}
        if found := {text for text in texts if WORD.search(text)}:
            left[name] = found
        (page,) = Page(html).named("html")
        assert page == {"lang": language.tag, "dir": language.direction}
    assert left == {}


def test_template_has_no_text_outside_of_gettext() -> None:
    # This also sees a branch that no page state shows.
    left: dict[str, list[str]] = {}
    for path in set(template_folder().glob("*.html")) - set(english_templates()):
        text = re.sub(r"{% trans.*?endtrans %}", "", path.read_text("utf-8"), flags=re.DOTALL)
        text = re.sub(r"{#.*?#}|{%.*?%}|{{.*?}}", "", text, flags=re.DOTALL)
        if found := WORD.findall(re.sub(r"<[^>]*>", "", text)):
            left[path.name] = found
    # The block `sign` of a notice names an icon, and is not shown as text.
    signs = {"good", "over", "time", "person", "trouble", "class", "wide"}
    assert {name: found for name, found in left.items() if set(found) - signs} == {}


def test_only_pages_for_operators_are_not_translated() -> None:
    assert {view.__name__ for view in VIEWS if not view.is_translated} == {
        *("OperatorList", "OperatorRecord", "OperatorAct", "OperatorEnter"),
    }


def test_pseudo_locales_are_longer_and_read_from_right_to_left() -> None:
    view = usual(views.StartUrl)
    texts = {name: Page(PAGES.render(view, one)).text("main") for name, one in PSEUDO.items()}
    assert len(texts["accented"]) > 1.15 * len(Page(PAGES.render(view)).text("main"))
    assert PSEUDO["accented"].direction == "ltr"
    assert PSEUDO["right to left"].direction == "rtl"


@pytest.mark.parametrize("path", sorted(CATALOGUES.glob("*.po")), ids=lambda path: path.stem)
def test_catalogue_has_exactly_the_texts_of_the_pages(path: Path) -> None:
    with path.open("rb") as file:
        found = read_po(file, locale=path.stem.replace("-", "_"))
    wanted = {(one.context, one.id) for one in extracted() if one.id}
    assert {(one.context, one.id) for one in found if one.id} == wanted, "run: make messages"
    assert [one.id for one in found if one.id and not all(_strings(one))] == []
    assert [one.id for one in found if one.fuzzy and one.id] == []
    assert [fault for one in found if one.id and (fault := fault_of(one))] == []
    assert found.obsolete == {}


def _strings(message: Message) -> tuple[object, ...]:
    return message.string if isinstance(message.string, tuple) else (message.string,)


def test_extraction_changes_nothing_in_a_complete_catalogue() -> None:
    path = CATALOGUES / "de.po"
    assert updated(path) == path.read_text("utf-8")


def test_extraction_keeps_translations_adds_new_texts_and_drops_obsolete_ones(
    tmp_path: Path,
) -> None:
    path = tmp_path / "de.po"
    path.write_text(
        'msgid ""\nmsgstr ""\n\nmsgid "Decline"\nmsgstr "Nein"\n\nmsgid "Old"\nmsgstr "Alt"\n'
    )
    found = updated(path)
    assert 'msgid "Decline"\nmsgstr "Nein"' in found
    assert 'msgid "Approve"\nmsgstr ""' in found
    assert "Alt" not in found


@pytest.mark.parametrize(
    ("id", "string"),
    [
        ("Paid %(price)s", "Bezahlt"),
        ("Paid %(price)s", "Bezahlt %(prices)s"),
        ("Paid %(price)s", "Bezahlt %(price)s %(price)s"),
        ("Paid %(price)s", "Bezahlt %(price)d"),
        ("Paid", "100 %"),
        ("Paid", "<b>Bezahlt</b>"),
        ("<b>Paid</b>", "Bezahlt"),
        ('<a href="%(url)s">Paid</a>', '<a href="https://evil.example">%(url)s</a>'),
        ("Paid", 'Bezahlt" onclick="go()'),
        ("Paid", "Bezahlt < 1"),
        ("Paid", "<script>go()</script>"),
    ],
)
def test_translation_with_other_placeholders_or_markup_is_ignored(
    id: str, string: str, caplog: pytest.LogCaptureFixture
) -> None:
    catalogue = Catalog(locale="de")
    catalogue.add(id, string)
    assert fault_of(catalogue[id]) is not None
    language = Language("de", lambda: catalogue)
    assert language.messages.gettext(id) == id
    assert [record.message for record in caplog.records] == ["page.translation_wrong"]


@pytest.mark.parametrize(
    "content", [b"\xff\xfe", b'msgid "Decline', b'msgid "Decline"\nnonsense\n']
)
def test_unreadable_catalogue_falls_back_to_english(
    content: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "de.po"
    path.write_bytes(content)
    language = language_in(path)
    assert ">Decline<" in PAGES.render(usual(views.StartUrl), language)
    assert [record.message for record in caplog.records] == ["page.catalogue_unreadable"]
    path.unlink()
    assert "Decline" in PAGES.render(usual(views.StartUrl), language_in(path))


def test_missing_translation_falls_back_to_english() -> None:
    catalogue = Catalog(locale="de")
    catalogue.add("Decline", "Ablehnen")
    page = Page(PAGES.render(usual(views.StartUrl), Language("de", lambda: catalogue)))
    assert "Ablehnen" in page.text("main")
    assert "Continue to example.org" in page.text("main")
    assert "Your assistant does not see that site." in page.text("main")


def test_page_in_german() -> None:
    page = Page(PAGES.render(usual(StartPayment, price="9,00\u00a0€"), GERMAN))
    text = " ".join(page.text("main").split())
    assert page.named("html") == [{"lang": "de", "dir": "ltr"}]
    assert page.text("h1").split() == ["9,00", "€", "an", "my", "tools", "zahlen?"]
    assert "vor 12 Sekunden" in text
    assert "4 Minuten, bis 21:34 UTC" in text
    assert "Frist: 7 Tage" in text
    assert "Ihr Assistent sieht Ihre Karte nie." in text


def test_german_sentence_that_names_the_asker_is_inflected() -> None:
    view = Ended(server="my tools", ending="declined")
    assert "An Ihren Assistenten wurde nichts" in PAGES.render(view, GERMAN)
    assert "An die Anwendung wurde nichts" in PAGES.render(replace(view, for_user=True), GERMAN)


def test_faults_of_a_form_are_translated_with_their_values() -> None:
    schema = form_schema()
    form = form_of(schema, values={"answer.name": ["a"]}, faults=schema_faults(schema))
    page = Page(PAGES.render(usual(StartForm, form=form), GERMAN))
    assert "Das ist zu kurz: 1 von mindestens 3 Zeichen." in page.text("main")


def form_schema() -> Any:
    from flows.schema.schema import schema_of

    return schema_of({"type": "object", "properties": {"name": {"type": "string", "minLength": 3}}})


def schema_faults(schema: Any) -> Any:
    from flows.schema.schema import check

    return check(schema, {"name": "a"})


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "GitHub did not issue an access token (denied)",
            "GitHub hat keinen Zugriffsschlüssel ausgestellt (denied)",
        ),
        (
            "GitHub did not renew the access token (HTTP 404)",
            "GitHub hat den Zugriffsschlüssel nicht erneuert (HTTP 404)",
        ),
        (
            "The server could not process your browser's request.",
            "Der Server konnte die Anfrage Ihres Browsers nicht verarbeiten.",
        ),
        ("The author's own words.", "The author's own words."),
        ("Decline", "Decline"),  # only a template has this text
        ("%(label)s did not say whose account it is" * 20, None),
    ],
)
def test_text_of_the_code_is_translated_and_other_text_is_unchanged(
    text: str, shown: str | None
) -> None:
    assert GERMAN.translated(text) == (text if shown is None else shown)


def test_value_of_a_sentence_is_escaped_and_cleaned() -> None:
    hostile = "<b>x</b>\u202e %(name)s %s {0}"
    problem = f"{hostile} did not say whose account it is"
    html = PAGES.render(usual(Ended, kind="account", ending="failed", problem=problem), GERMAN)
    assert "&lt;b&gt;x&lt;/b&gt;\ufffd %(name)s %s {0} hat nicht gesagt, wem das Konto" in html
    html = PAGES.render(BadRequest(server=hostile, problem="Bad Request."), GERMAN)
    assert "<b>x</b>" not in html
    assert "\u202e" not in html


@pytest.mark.parametrize(
    ("seconds", "waits"),
    [(1, "1 Sekunde"), (2, "2 Sekunden"), (60, "1 Minute"), (7200, "2 Stunden")],
)
def test_plurals_are_those_of_the_language(seconds: int, waits: str) -> None:
    view = TooFast(server="my tools", wait=timedelta(seconds=seconds))
    assert f"Warten Sie {waits} und" in PAGES.render(view, GERMAN)


LANGUAGES = (ENGLISH, GERMAN, *PSEUDO.values())


@pytest.mark.parametrize(
    ("accepted", "tag"),
    [
        ("", "en"),
        ("de", "de"),
        ("de-AT", "de"),
        ("DE-at", "de"),
        ("de-Latn-AT-1996", "de"),
        ("fr", "en"),
        ("fr, de;q=0.5", "de"),
        ("fr;q=0.9, de;q=0.1, en;q=0.5", "en"),
        ("de;q=0", "en"),
        ("de-AT, de;q=0", "en"),
        ("*", "en"),
        ("*, en;q=0", "de"),
        ("fr, *;q=0.1", "en"),
        ("en-US,en;q=0.9,de;q=0.8", "en"),
        ("ar-EG", "ar"),
        ("xx-evil<script>, de;q=abc, ;;;, q=1", "en"),
        ("de;q=1.5", "en"),
        ("de\u00e9", "en"),
        ("fr, " * 100_000 + "de", "en"),
        ("a-" * 5_000 + "de", "en"),
        ("../../etc/passwd", "en"),
    ],
)
def test_language_is_the_one_that_the_browser_prefers(accepted: str, tag: str) -> None:
    assert negotiated(accepted, LANGUAGES).tag == tag


def test_first_language_is_used_if_no_language_of_the_browser_is_supported() -> None:
    assert negotiated("fr", (GERMAN, ENGLISH)).tag == "de"
    assert negotiated("en", (GERMAN,)).tag == "de"


def test_languages_default_to_english_and_have_no_duplicates() -> None:
    assert languages_of(())[0] is ENGLISH
    assert [one.tag for one in languages_of(("de", "en", "de"))] == ["de", "en"]


def test_texts_of_the_code_have_a_context_of_their_own() -> None:
    ids = {message.id for message in extracted() if message.context == FROM_CODE}
    assert "Fill this in." in ids
    assert "This is too short: %(length)s of at least %(least)s characters." in ids
    assert all("%(" in one or "%" not in one for one in ids if isinstance(one, str))
