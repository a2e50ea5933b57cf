"""Tests of each client on each revision: for each kind a person is reached and the tool returns."""

import pytest

from tests.clients.catalog import CLIENTS, FRAMEWORKS, WITHOUT_STREAMS
from tests.clients.document import DOCUMENT, document, seen
from tests.clients.env import KINDS
from tests.clients.reaching import KnownClient
from webapp.pages.views_own import Home

ON_A_REVISION = [
    pytest.param(client, revision, id=f"{client.name}-{revision}")
    for client in (*CLIENTS, *FRAMEWORKS, *WITHOUT_STREAMS)
    for revision in client.declares
]


@pytest.mark.parametrize(("client", "revision"), ON_A_REVISION)
def test_each_client_reaches_person_for_every_kind(client: KnownClient, revision: str) -> None:
    for kind in KINDS:
        reached = seen(client, revision, kind)
        assert reached.sees is not None, kind


def test_clients_page_matches_observations() -> None:
    assert DOCUMENT.read_text("utf-8") == document(), (
        "the page is out of date: run python -m tests.clients"
    )


def test_clients_page_has_same_setup_commands_as_home_page() -> None:
    home = Home(server="my tools", mcp_url="http://127.0.0.1:8765/mcp", tools=())
    page = DOCUMENT.read_text("utf-8")
    for text in (home.claude_command, home.vscode_settings, home.cursor_settings):
        assert text in page
    assert home.desktop_settings in page
