"""Several processes for one application: the start is refused if they cannot work together."""

import sys

import pytest

from flows.errors import StoreUnavailable
from webapp.workers.sessions import must_share


@pytest.mark.parametrize(
    "arguments",
    [
        ["/usr/bin/hypercorn", "-w", "2", "shop:app"],
        ["/usr/bin/hypercorn", "-w2", "shop:app"],
        ["/venv/bin/granian", "shop:app", "--workers", "4"],
        ["/venv/bin/granian", "shop:app", "--workers=2"],
        ["/lib/granian/__main__.py", "--workers", "3", "shop:app"],
    ],
)
def test_several_processes_with_memory_store_are_refused(arguments: list[str]) -> None:
    with pytest.raises(StoreUnavailable, match=r"[2-4] processes .* --workers 1"):
        must_share(arguments, store="memory:")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["/usr/bin/hypercorn", "shop:app"],
        ["/venv/bin/granian", "shop:app", "--workers", "many"],
        ["/venv/bin/granian", "shop:app", "--workers", "1"],
        ["/usr/bin/pytest", "-w", "4"],
    ],
)
def test_single_process_with_memory_store_is_accepted(arguments: list[str]) -> None:
    assert must_share(arguments, store="memory:", caller=sys._getframe()) == 1
