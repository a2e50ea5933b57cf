"""The operator's brand on the pages, and the files of an operator's own templates."""

from pathlib import Path

import pytest
from jinja2 import UndefinedError

from tests.support.markup import Page
from tests.support.page_views import choice, usual
from tests.support.pictures import png
from webapp.pages.renderer import FORMER_FIELDS, Renderer, template_folder, without_hash
from webapp.pages.views import Done, StartAccount, StartPayment, Unknown, UseAccount, View
from webapp.pages.views_forms import DoneSecret, StartConfirm
from webapp.settings.brand import Brand, accent, image_of

BRAND = Brand(
    name="Acme Research",
    logo=image_of(png()),
    accent=accent("#7a1fa2"),
    legal_name="Acme Research GmbH",
    contact="help@acme.example",
    privacy="https://acme.example/privacy",
    terms="https://acme.example/terms",
).of("my tools")


def _shown(view: View, brand: Brand = BRAND) -> Page:
    return Page(Renderer(folders=[template_folder()], brand=brand).render(view))


# finding: XP12
def test_every_page_has_the_operators_name_logo_accent_and_links():
    page = _shown(usual(Done))
    assert page.text("header").strip() == "Acme Research"
    assert "my tools" not in page.text("main")
    (logo,) = page.named("img")
    assert logo["src"] == f"/static/{image_of(png()).name}"
    icon, *sheets = page.named("link")
    assert icon == {"rel": "icon", "href": logo["src"], "type": "image/png"}
    assert [(sheet["rel"], without_hash(sheet["href"])) for sheet in sheets] == [
        ("stylesheet", "/static/elicit.css"),
        ("stylesheet", f"/static/{accent('#7a1fa2').name}"),  # type: ignore[union-attr]
    ]
    assert [link["href"] for link in page.named("a")] == [
        "mailto:help@acme.example",
        "https://acme.example/privacy",
        "https://acme.example/terms",
    ]
    assert "Acme Research GmbH" in page.text("footer")


def test_headline_names_the_brand():
    assert _shown(usual(StartAccount)).text("h1") == "Let Acme Research use your GitHub account?"
    assert _shown(usual(StartPayment)).text("h1") == "Pay 9.00 € to Acme Research?"


def test_page_without_a_brand_has_no_footer_and_no_logo():
    page = _shown(usual(Done), Brand())
    assert page.named("footer") == page.named("img") == []


def test_files_next_to_the_operators_templates_are_served_by_name(tmp_path: Path):
    folder = tmp_path / "static"
    (folder / "below").mkdir(parents=True)
    (folder / "site.css").write_text("h1 {}")
    (folder / "page.html").write_text("<script>alert(1)</script>")
    (folder / "below" / "deep.css").write_text("")
    pages = Renderer(folders=[tmp_path, template_folder()])
    assert pages.files == {"own/site.css": (b"h1 {}", "text/css")}


@pytest.mark.parametrize("name", ["base.html", "done.html"])
def test_operators_template_can_use_the_documented_fields(tmp_path: Path, name: str):
    (tmp_path / name).write_text(
        "<title>{{ brand.name }}</title><h1>{{ view.server|named }}</h1>"
        "<link rel=stylesheet href=\"{{ '/static/own/site.css'|at }}\">{{ asked_by }}"
    )
    pages = Renderer(folders=[tmp_path, template_folder()], root_path="/tools", brand=BRAND)
    page = Page(pages.render(usual(Done)))
    assert page.text("h1") == "Acme Research"
    assert without_hash(page.named("link")[0]["href"]) == "/tools/static/own/site.css"


@pytest.mark.parametrize(
    ("view", "former"),
    [
        (usual(DoneSecret, is_stored=True), "view.kept"),
        (usual(StartConfirm, can_be_stored=True), "view.can_be_kept"),
        (usual(Unknown, is_our_link=True), "view.is_ours"),
        (
            usual(UseAccount, choices=(choice(is_limited_to_some=True),)),
            'view.choices|selectattr("is_kept_to_some")|list|length == 1',
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_operators_template_can_read_a_field_by_its_former_name(
    tmp_path: Path, view: View, former: str
):
    (tmp_path / view.template).write_text(f"<h1>{{{{ {former} }}}}</h1>")
    pages = Renderer(folders=[tmp_path, template_folder()])
    with pytest.warns(FutureWarning, match=f"the field ({'|'.join(FORMER_FIELDS)}) is"):
        assert Page(pages.render(view)).text("h1") == "True"


def test_operators_template_that_reads_an_unknown_field_raises(tmp_path: Path):
    (tmp_path / "done.html").write_text("<h1>{{ view.kept }}</h1>")
    with pytest.raises(UndefinedError, match="has no attribute 'kept'"):
        Renderer(folders=[tmp_path, template_folder()]).render(usual(Done))
