"""Tests of README and docs/: links work, and pages that come from the code are current."""

import inspect
import re
from collections.abc import Iterator
from urllib.parse import urlsplit

import flows
import webapp
from docs import generated
from flows import elicit
from flows.providers.catalogue import LISTINGS
from tests.support.cli import PROJECT
from tests.support.samples import FILES, PAGES, samples

README = PAGES["README.md"]
GUIDE_BYTES_AT_MOST = 8_000
LINK = re.compile(r"(?<!!)\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^()\s]+)\)")
SOURCES = {urlsplit(one.source).netloc for one in LISTINGS if one.status == "documented"}
OUTSIDE = {"semver.org", "www.standardwebhooks.com"} | SOURCES


def test_readme_first_screen_has_the_tool_and_two_commands():
    first_screen = "\n".join(README.splitlines()[:30])
    code = samples("README.md", "python")[0]
    assert code in first_screen
    lines = [line.strip() for line in code.splitlines()]
    assert len([line for line in lines if line and not line.startswith(("#", '"""'))]) == 8
    # finding: XA17
    for command in ("make run", "make test"):
        assert f"`{command}`" in first_screen


def test_readme_code_blocks_contain_no_placeholders():
    blocks = [text for kind in ("console", "json") for text in samples("README.md", kind)]
    assert len(blocks) >= 6
    assert [text for text in blocks if re.search(r"/path/|<\w+>|\.\.\.|^\$ ", text)] == []


def test_no_command_block_adds_a_server_to_a_client_twice():
    # finding: XA16
    for name, text in PAGES.items():
        for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
            assert len(re.findall(r"^claude mcp add\b", block, re.MULTILINE)) <= 1, name


def test_readme_stays_within_size_limit():
    assert len(README.encode()) <= GUIDE_BYTES_AT_MOST


def test_docs_have_at_most_thirty_pages():
    assert len(sorted((PROJECT / "docs").rglob("*.md"))) <= 30


def test_every_verb_is_shown_in_the_guide():
    shown = FILES["github_tools.py"]
    for verb in ("oauth", "payment", "secret", "form", "confirm", "url"):
        assert f"await elicit.{verb}(" in shown


def test_generated_pages_are_up_to_date():
    for page in generated.PAGES:
        text = (generated.DOCS / page).read_text("utf-8")
        assert text == generated.page(page), (
            f"docs/{page} is out of date: run python -m docs.generated"
        )


def test_every_public_name_is_in_the_reference():
    api = PAGES["docs/reference/api.md"]
    reported = set(re.findall(r"(?m)^\.\. auto\w+:: [\w.]+\.(\w+)(?:\(\))?$", api))
    reported |= set(re.findall(r"(?m)^\| (?:&nbsp;)*\*\*`(\w+)`", api))
    named = {*flows.__all__, *webapp.__all__, *elicit.__all__} - {"elicit"}
    assert named - reported == set()


def test_guide_lists_exactly_the_named_parameters_of_each_verb():
    # finding: XA20
    section = PAGES["docs/how-to/writing-tools.md"].partition("## All parameters\n")[2]
    rows = re.findall(r"(?m)^\| (`.*?) \| (`.*?) \| .", section.partition("\n## ")[0])
    reported = [
        (verb, parameter)
        for names, verbs in rows
        for verb in re.findall(r"`(\w+)`", verbs)
        for parameter in re.findall(r"`(\w+)`", names)
    ]
    named = {
        (verb, parameter.name)
        for verb in elicit.__all__
        for parameter in inspect.signature(getattr(elicit, verb)).parameters.values()
        if parameter.kind is parameter.KEYWORD_ONLY
    }
    assert sorted(reported) == sorted(named)


def test_index_lists_every_page_once_and_starts_with_pages_for_new_readers():
    page = (PROJECT / "docs" / "index.md").read_text("utf-8")
    listed = LINK.findall(page.partition("## All pages\n")[2])
    assert listed[:2] == ["tutorials/first-server.md", "explanation/what-runs-again.md"]
    assert sorted(f"docs/{each}" for each in listed) == sorted(
        name for name in PAGES if name.startswith("docs/") and name != "docs/index.md"
    )


def test_pages_show_no_directive_to_a_reader_on_github():
    # GitHub shows a directive as text. api.md needs directives to insert the docstrings.
    with_directives = {name for name, text in PAGES.items() if "```{" in text}
    assert with_directives == {"docs/reference/api.md"}


def test_reference_documents_every_public_attribute_of_tool_values():
    page = PAGES["docs/reference/api.md"]
    for kind in (flows.Account, flows.Receipt, flows.Refund, flows.Outcome, flows.Link):
        section = page.partition(f":: flows.{kind.__name__}()\n")[2].partition(".. auto")[0]
        public = {name for name in dir(kind) if not name.startswith(("_", "as_"))}
        assert public - set(re.findall(r"\w+", section)) == set(), kind.__name__


def test_every_link_leads_somewhere():
    documents = {**PAGES, "CONTRIBUTING.md": "", "CHANGELOG.md": ""}
    for page in documents:
        text = (PROJECT / page).read_text("utf-8")
        assert [link for link in LINK.findall(_prose(text)) if not _leads(page, link)] == [], page


def test_every_page_is_reachable_from_the_readme():
    reached, new = set[str](), {"README.md"}
    while new:
        page = new.pop()
        reached.add(page)
        links = (urlsplit(link).path for link in LINK.findall(_prose(PAGES[page])))
        found = {(PROJECT / page).parent.joinpath(link).resolve() for link in links if link}
        new |= {
            path.relative_to(PROJECT).as_posix() for path in found if path.is_relative_to(PROJECT)
        } & set(PAGES) - reached
    assert set(PAGES) - reached == set()


def _prose(text: str) -> str:
    return re.sub(r"(?ms)^```.*?^```$", "", text)


def _leads(page: str, link: str) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return parts.scheme == "https" and parts.netloc in OUTSIDE
    path = (PROJECT / page).parent / parts.path if parts.path else PROJECT / page
    if not path.exists() or not path.resolve().is_relative_to(PROJECT):
        return False
    return not parts.fragment or parts.fragment in set(_anchors(path.read_text("utf-8")))


def _anchors(text: str) -> Iterator[str]:
    """Yield the anchors of the page's headings."""
    for heading in re.findall(r"(?m)^#+ (.*)$", _prose(text)):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")
