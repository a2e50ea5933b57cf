"""Two instances of one server behind nginx: what holds with one process holds with two."""

from pathlib import Path

import pytest

from tests.hosts.checks import PROMISES, Promise, Verdict
from tests.hosts.instances import instances
from tests.hosts.nginx import NGINX

pytestmark = pytest.mark.skipif(NGINX is None, reason="needs nginx")
# Where both keep their records; {folder} is the test's own.
STORES = ("sqlite:///{folder}/store.db",)
WAYS = {
    "by session, apart": {"by_session": True, "on_one_machine": False},
    "in turn, on one machine": {"by_session": False, "on_one_machine": True},
}
TRIED = ("pages", "host and origin", "identity", "sessions", "resumption", "delivery")


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "promise", [each for each in PROMISES if each.name in TRIED], ids=lambda promise: promise.name
)
async def test_a_promise_holds_whichever_instance_a_request_comes_to(
    tmp_path: Path, promise: Promise, way: str, store: str
) -> None:
    address = store.format(folder=tmp_path)
    async with instances(tmp_path, store=address, **WAYS[way]) as both:
        assert await promise.check(both.served) == Verdict.HOLDS
