"""Texts of errors and start-up messages about mistakes in settings, files and code."""

import re
from pathlib import Path

import pytest

from flows import Cancelled, Declined, Denied, Failed, Superseded, elicit
from webapp.serving.announcing import announcement
from webapp.serving.finding import find_server
from webapp.settings.settings import BadSettings, read_settings


def test_decline_has_no_server_error_status() -> None:
    # finding: A4
    statuses = {error: error.http_status for error in (Declined, Denied, Cancelled, Superseded)}
    assert statuses == {Declined: 403, Denied: 403, Cancelled: 409, Superseded: 409}
    assert Failed.http_status == 502


@pytest.mark.parametrize(("store", "is_reported"), [("memory:", True), (None, False)])
def test_announcement_warns_about_memory_store(
    tmp_path: Path, store: str | None, *, is_reported: bool
) -> None:
    # finding: A4
    environment = {"HOME": str(tmp_path), **({"ELICIT_STORE": store} if store else {})}
    text = "".join(announcement(read_settings(environment), "shop"))
    assert ("its data is lost when the server stops" in text) == is_reported


def test_announcement_of_public_server_warns_if_no_person_can_be_identified(tmp_path: Path) -> None:
    public = {"HOME": str(tmp_path), "ELICIT_URL": "https://a.example", "ELICIT_SECRET": "x" * 40}
    for more, is_reported in (({}, True), ({"ELICIT_BIND": "code"}, False)):
        text = "".join(announcement(read_settings({**public, **more}), "shop"))
        assert ("nobody   can be asked: set ELICIT_ISSUER" in text) == is_reported


def test_announcement_hides_password_of_store(tmp_path: Path) -> None:
    for scheme in ("postgresql", "valkeys"):
        store = f"{scheme}://me:hunter2@db.example/1"
        text = "".join(
            announcement(
                read_settings(
                    {"HOME": str(tmp_path), "ELICIT_STORE": store, "ELICIT_SECRET": "x" * 40}
                ),
                "shop",
            )
        )
        assert "db.example" in text
        assert "hunter2" not in text


@pytest.mark.parametrize("word", ["[", "del[ete", '["delete_*"]', "a]", "delete;"])
def test_invalid_gate_pattern_is_refused(tmp_path: Path, word: str) -> None:
    # finding: A4
    with pytest.raises(BadSettings, match="ELICIT_GATE"):
        read_settings({"HOME": str(tmp_path), "ELICIT_GATE": word})
    for right in ("delete_*", "a?c", "[abc]_x", "shop.buy", "ns/buy:now", "destructive"):
        read_settings({"HOME": str(tmp_path), "ELICIT_GATE": right})


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("my_tools.py", "my_tools:mcp"),
        ("./my_tools.py:server", "my_tools:server"),
        ("shop/tools.py", "shop.tools:mcp"),
        ("../a b.py", "my_tools:mcp"),
    ],
)
def test_file_path_is_refused_with_module_to_write(given: str, meant: str) -> None:
    # finding: A4
    with pytest.raises(ImportError, match=f"as in {meant} "):
        find_server(given)


def test_repr_of_question_hides_its_content() -> None:
    # finding: A4
    question = elicit.url("The key is sesame", "https://shop.example/?token=sesame")
    assert repr(question) == str(question)
    words = r"<Question of the kind url at test_startup_messages\.py:\d+, not asked: await it>"
    assert re.fullmatch(words, str(question))
