"""A public server's own tests, and one more in which a tool asks and a test person answers."""

import subprocess
import sys
from pathlib import Path

from tests.public.servers import DUCKDUCKGO, environment
from tests.support.cli import environment_of

ASKS = """

async def test_fetch_content_asks_for_an_account(
    elicit_person, local_http_server, allow_private_fetches
):
    url = local_http_server("<html><body><h1>Hello E2E</h1></body></html>")
    async with elicit_person(mcp_app) as person:
        person.connects()
        heard = await person.call("fetch_content", url=url)
    assert "Hello E2E" in heard.text
    assert [asked.kind for asked in person.asked] == ["oauth"]
"""


def test_asking_tool_passes_servers_own_tests_with_test_person(
    tmp_path: Path,
) -> None:
    folder = DUCKDUCKGO.copied(tmp_path)
    tests = folder / DUCKDUCKGO.package / "test_e2e.py"
    tests.write_text(tests.read_text("utf-8") + ASKS, "utf-8")
    options = ("-q", "-p", "no:cacheprovider", "-o", "asyncio_mode=auto", "--durations=0")
    chosen = ("-k", "asks_for_an_account or lists_tools or search_tool or expand")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *chosen, str(tests)],
        cwd=folder,
        env=environment_of(tmp_path, environment(folder)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "test_fetch_content_asks_for_an_account" in done.stdout
