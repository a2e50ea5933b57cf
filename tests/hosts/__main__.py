"""Run every check on every host, and write the table into docs/reference/clients.md."""

import sys

import pytest

from tests.hosts.table import FILE, rendered, with_table

if __name__ == "__main__":
    ended = pytest.main(["-q", "tests/hosts/test_hosts.py", *sys.argv[1:]])
    if ended:
        sys.exit(ended)
    FILE.write_text(with_table(FILE.read_text("utf-8"), rendered()), "utf-8")
