"""`elicit serve --replay` prints the mistake of each planted server, and nothing for an example."""

import pytest

from tests.cookbook.servers import EXAMPLES, PLANTED
from tests.support.cli import called, ended, serving

FOLDER = EXAMPLES.parent / "tests" / "cookbook" / "planted"
SERVED = {
    **{name: (FOLDER, [tool], words) for name, (tool, _, words) in PLANTED.items()},
    "paid_report": (EXAMPLES, ["buy_report", "city=Graz"], ""),
    "booking": (EXAMPLES, ["book_seat", "seat=14"], ""),
    "batch": (EXAMPLES, ["pay_invoices"], ""),
}


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
@pytest.mark.parametrize("name", SERVED)
async def test_served_process_prints_what_was_repeated(tmp_path, name, mode):
    # finding: XA9
    folder, (tool, *arguments), words = SERVED[name]
    options = ("--replay", "--sandbox")
    async with serving(f"{name}:mcp", *options, home=tmp_path, cwd=folder) as server:
        at = ("--url", server.url, "--no-browser", "--mode", mode)
        demo = await called("demo", *at, "--tool", tool, *arguments, home=tmp_path)
        assert demo.status == 0, demo.err + demo.out
        server.process.terminate()
        printed = (await ended(server.process)).out
    assert f"replay: {tool} ran " in printed
    assert words in printed
    assert ("Repeated outside of elicit.once" in printed) == bool(words), printed
