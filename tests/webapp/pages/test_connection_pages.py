"""The pages on which a person sees and disconnects their accounts."""

from collections import Counter
from dataclasses import fields, replace
from datetime import UTC, datetime

import pytest

from tests.support.markup import Page
from tests.support.page_views import NOW, SIGN_IN, Shown, usual
from webapp.pages.renderer import Renderer
from webapp.pages.views import AccountName, Scope
from webapp.pages.views_openers import Closed
from webapp.pages.views_own import (
    AccountGroup,
    Connected,
    ConnectionsPage,
    Disconnected,
)

APPS = "https://github.com/settings/applications"
AWAY = {"href": APPS, "rel": "noopener noreferrer", "translate": "no"}


@pytest.fixture
def overview() -> ConnectionsPage:
    return usual(ConnectionsPage)


@pytest.fixture
def one(overview: ConnectionsPage) -> Connected:
    return overview.groups[0].connected[0]


@pytest.fixture
def gone() -> Disconnected:
    return usual(Disconnected)


def _with(
    overview: ConnectionsPage, *connected: Connected, name: str = "my tools"
) -> ConnectionsPage:
    return replace(overview, groups=(AccountGroup(name=name, connected=connected),))


def test_connections_page_shows_viewer_permissions_and_last_use(
    overview: ConnectionsPage, shown: Shown
) -> None:
    page = shown(overview)
    text = page.main_text()
    assert page.text("h1") == "Your accounts"
    assert "Signed in as Mona Lisa Octocat." in text
    assert page.text("h2") == "GitHub"
    assert "Connected 18 Nov 2025, 21:30 UTC" in text
    assert "Read and write your repositories" in text
    assert "List my repositories Last used" in " ".join(
        page.text("main").replace("List my repositories", "List my repositories ").split()
    )
    assert "Not used yet" in text
    assert "Permissions and tools of octocat at GitHub" in text
    assert page.actions() == [
        "/signout",
        "/connections/x1/unshare?tool=list_my_repositories",
        "/connections/x1/unshare?tool=count_stars",
        "/connections/x1/keep",
    ]
    # finding: XP11
    assert "/connections/x1/disconnect" in [link["href"] for link in page.named("a")]
    assert "and deleted here" in text


def test_a_person_is_shown_by_the_initial_of_their_name(
    overview: ConnectionsPage, pages: Renderer
) -> None:
    html = pages.render(overview)
    assert '<span class="letter" aria-hidden="true">M</span>' in html
    assert Page(html).named("img") == []


def test_every_button_names_its_subject(overview: ConnectionsPage, shown: Shown) -> None:
    page = shown(overview)
    assert "Stop sharing with count_stars" in page.text("button")
    assert "Disconnect… octocat at GitHub" in page.text("a")


def test_local_user_has_no_sign_out_button(overview: ConnectionsPage, shown: Shown) -> None:
    here = replace(overview, viewer="you, on this computer", sign_out_csrf=None)
    page = shown(here)
    assert "Shown to you, on this computer." in page.main_text()
    assert page.actions()[0] == "/signin"
    assert "/signout" not in page.html
    assert "/signin" not in shown(replace(here, sign_in=None)).html


def test_active_account_is_marked_and_another_can_be_activated(
    overview: ConnectionsPage, one: Connected, shown: Shown
) -> None:
    used = replace(one, is_in_use=True)
    other = replace(
        one,
        id="x2",
        person=AccountName(label="hubot"),
        is_in_use=False,
        is_another_in_use=True,
        switch_action="/connections/x2/switch",
    )
    page = shown(_with(overview, used, other))
    assert page.text("h2") == "GitHub In useGitHub"
    assert (
        "Not in use. A tool gets this account only if it asks for it by name." in page.main_text()
    )
    assert "/connections/x2/switch" in page.actions()
    assert "Use hubot" in page.text("button")
    assert "Use octocat" not in page.text("button")
    assert "in use" not in shown(overview).main_text().lower()


def test_lapsed_account_needs_no_action(
    overview: ConnectionsPage, one: Connected, shown: Shown
) -> None:
    over = shown(_with(overview, replace(one, standing="over"))).main_text()
    assert "It no longer works." in over
    assert "the next time a tool needs it, you are asked to connect it again" in over
    unused = shown(_with(overview, replace(one, standing="unused"))).main_text()
    assert "No tool can use it." in unused


def test_account_can_be_reconnected_if_provider_is_configured(
    overview: ConnectionsPage, one: Connected, shown: Shown
) -> None:
    action = "/connections/x1/reconnect"
    page = shown(_with(overview, replace(one, reconnect_action=action)))
    assert action in page.actions()
    assert "Reconnect octocat at GitHub" in page.text("button")
    assert "econnect octocat at" not in shown(overview).text("button").replace("Disconnect", "")
    over = replace(one, standing="over", reconnect_action=action)
    text = shown(_with(overview, over)).main_text()
    assert "Reconnect it here, or do nothing: the next time a tool needs it, you are asked" in text


def test_single_inactive_account_says_tools_will_ask(
    overview: ConnectionsPage, one: Connected, shown: Shown
) -> None:
    text = shown(_with(overview, replace(one, is_in_use=False))).main_text()
    assert "No account is chosen for this site. A tool that needs one asks you" in text


def test_sandbox_account_is_marked(overview: ConnectionsPage, one: Connected, shown: Shown) -> None:
    page = shown(_with(overview, replace(one, is_sandbox=True)))
    assert page.text("h2") == "GitHub Sandbox"


@pytest.mark.parametrize(
    ("scopes", "words"),
    [
        ((), "See who you are, and nothing else"),
        (None, "What you allowed at GitHub when you connected it."),
        ((Scope(words="x:y", raw="x:y"),), "What it may do x:y"),
    ],
)
def test_permissions_without_description_are_shown(
    scopes: tuple[Scope, ...] | None,
    words: str,
    overview: ConnectionsPage,
    one: Connected,
    shown: Shown,
) -> None:
    page = shown(_with(overview, replace(one, scopes=scopes)))
    assert words in page.main_text()


def test_account_shared_with_no_tool_says_next_tool_will_ask(
    overview: ConnectionsPage, one: Connected, shown: Shown
) -> None:
    page = shown(_with(overview, replace(one, shared=())))
    assert "None at the moment. The next tool that needs it asks you." in page.main_text()


def test_servers_are_named_if_page_shows_other_servers(
    overview: ConnectionsPage, one: Connected, shown: Shown
) -> None:
    assert "For " not in shown(overview).text("h2")
    other = _with(overview, one, name="other tools")
    assert shown(other).text("h2") == "For other tools"
    both = replace(overview, groups=(*overview.groups, *other.groups))
    assert shown(both).text("h2") == "For my toolsFor other tools"


def test_each_section_of_page_has_unique_name(
    overview: ConnectionsPage, one: Connected, shown: Shown
) -> None:
    page = shown(_with(overview, one, replace(one, id="x2"), replace(one, id="x3")))
    ids = Counter(found["id"] for _, found in page.elements if "id" in found)
    named = {found["aria-labelledby"] for _, found in page.elements if "aria-labelledby" in found}
    assert set(ids.values()) == {1}
    assert named <= set(ids)
    assert len(named) == 12


def test_manual_removal_address_is_complete_and_the_only_external_link(
    overview: ConnectionsPage, one: Connected, gone: Disconnected, shown: Shown
) -> None:
    for view in (
        _with(overview, replace(one, manage=APPS)),
        replace(gone, revoked=False, manage=APPS),
    ):
        page = shown(view)
        away = [link for link in page.named("a") if not link["href"].startswith("/")]
        assert away == [AWAY]
        assert APPS in page.text("a")
        assert page.named("img") == []


def test_empty_connections_page_says_how_to_connect(
    overview: ConnectionsPage, shown: Shown
) -> None:
    page = shown(replace(overview, groups=()))
    assert "Nothing is connected." in page.main_text()
    assert [link["href"] for link in page.named("a")][-1] == "/"


@pytest.mark.parametrize(
    ("revoked", "words"),
    [
        (True, "GitHub has confirmed that access is revoked."),
        (False, "GitHub did not confirm that access is revoked."),
        (None, "GitHub offers no way to revoke access from here."),
    ],
)
def test_disconnected_page_says_data_is_wiped_whatever_provider_responded(
    revoked: bool | None, words: str, gone: Disconnected, shown: Shown
) -> None:
    page = shown(replace(gone, revoked=revoked, manage=None))
    text = page.main_text()
    assert page.text("h1") == "GitHub is disconnected"
    assert words in text
    deleted = "my tools has deleted what it stored about octocat."
    assert f"{deleted} Tools that need it ask you again." in text
    assert ("Remove it there, in the settings of your account." in text) == (revoked is not True)
    assert page.named("form") == []


def test_closed_page_shows_anonymous_visitor_only_how_to_sign_in(shown: Shown) -> None:
    reported = {field.name for field in fields(Closed)}
    every_page = {"server", "for_user", "came_late", "updates"}
    assert reported == {*every_page, "of", "why", "sign_in", "by_code"}
    asked = Closed(server="my tools", of="connections", why="", sign_in=SIGN_IN)
    page = shown(asked)
    assert page.text("h1") == "Sign in to see your accounts"
    assert page.actions() == ["/signin"]
    assert "shows each person only their own accounts" in page.main_text()
    here = shown(replace(asked, why="Open it over there.", sign_in=None))
    assert here.text("h1") == "Your accounts"
    assert here.named("form") == []
    assert "Open it over there." in here.main_text()
    assert "letters" not in here.main_text()


def test_closed_page_says_accounts_connected_by_code_are_not_listed(shown: Shown) -> None:
    view = Closed(server="my tools", of="connections", why="", by_code=True)
    text = shown(view).main_text()
    assert "It isn't listed here" in text
    assert "To disconnect it, remove the connection at the site where the account is." in text


def test_connection_has_absolute_date(overview: ConnectionsPage, shown: Shown) -> None:
    # finding: XP13
    text = shown(replace(overview, now=NOW.replace(year=NOW.year + 1))).main_text()
    assert "Connected 18 Nov 2025, 21:30 UTC" in text


def test_connections_page_names_assistants_which_can_use_account(
    overview: ConnectionsPage, one: Connected, shown: Shown
) -> None:
    # finding: S11
    text = shown(overview).main_text()
    assert "All your assistants can use it." in text
    assert "Claude its own name, not verified https://app.example verified by its sign-in" in text
    assert "Save for octocat" in text
    assert "Allow all my assistants" not in text
    stored = shown(_with(overview, replace(one, is_limited_to_some=True))).main_text()
    assert "Only the selected assistants. Any other asks you first." in stored
    assert "Allow all my assistants to use octocat" in stored


def test_account_that_ends_soon_says_when(shown: Shown) -> None:
    (group,) = usual(ConnectionsPage).groups
    (one,) = group.connected
    ending = replace(one, standing="works", ends_at=datetime(2026, 5, 3, tzinfo=UTC))
    for connected, says in ((ending, True), (replace(ending, standing="over"), False)):
        page = shown(usual(ConnectionsPage, groups=(replace(group, connected=(connected,)),)))
        assert (
            "Stops working on 3 May 2026, 00:00 UTC. Connect it again before then."
            in page.main_text()
        ) is says
