"""`elicit pair`: prints an address and a key, on a local server without sign-in."""

import re

import pytest

from tests.support.settings import PUBLIC
from webapp.cli.main import main


@pytest.mark.usefixtures("home")
def test_pair_prints_an_address_for_a_browser_and_a_key_for_a_client(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["pair", "--port", "8770"]) == 0
    pair, key, once = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"  pair {5}http://127\.0\.0\.1:8770/pair/\S+ .*", pair)
    assert re.fullmatch(r"  key {6}\S+ .*bearer token\)", key)
    assert "works once" in once


@pytest.mark.usefixtures("home")
def test_pair_is_refused_on_a_public_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in PUBLIC.items():
        monkeypatch.setenv(name, value)
    assert main(["pair"]) == 1
    printed = capsys.readouterr()
    assert "for local servers without sign-in only" in printed.err
    assert printed.out == ""
