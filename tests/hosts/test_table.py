"""Tests that docs/reference/clients.md has the checked table."""

from tests.hosts.checks import PROMISES
from tests.hosts.table import FILE, HOSTS, rendered, with_table


def test_the_document_has_the_table_that_the_checks_hold_to() -> None:
    text = FILE.read_text("utf-8")
    assert text == with_table(text, rendered()), "python -m tests.hosts writes it"


def test_what_is_a_hosts_own_is_said_of_promises_that_there_are() -> None:
    names = {promise.name for promise in PROMISES}
    for host in HOSTS:
        assert set(host.own) <= names, host.name
    assert len({host.name for host in HOSTS}) == len(HOSTS)
