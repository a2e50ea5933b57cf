"""Tests that docs/reference/clients.md has the checked table."""

from tests.hosts.checks import PROMISES
from tests.hosts.table import FILE, HOSTS, rendered, with_table


def test_document_contains_the_checked_table() -> None:
    text = FILE.read_text("utf-8")
    assert text == with_table(text, rendered()), (
        "the table is out of date: run python -m tests.hosts"
    )


def test_host_exceptions_name_only_existing_promises() -> None:
    names = {promise.name for promise in PROMISES}
    for host in HOSTS:
        assert set(host.own) <= names, host.name
    assert len({host.name for host in HOSTS}) == len(HOSTS)
