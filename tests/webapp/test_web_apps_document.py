"""The samples in docs/how-to/asgi.md do what the page says."""

import asyncio
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from flows.elicitation.shown_link import ShownLink
from tests.support.clock import NOON
from tests.support.mcp_server import soon
from tests.support.settings import SECRET

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "asgi.md").read_text("utf-8")
PAGE = PAGE.partition("\n## Web applications without MCP\n")[2]
FIRST, SECOND = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


async def test_first_sample_shows_user_a_link_to_connect_account(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ELICIT_SECRET", SECRET)
    monkeypatch.setenv("ELICIT_STORE", "memory:")
    for name in ("CLIENT_ID", "CLIENT_SECRET"):
        monkeypatch.setenv(f"ELICIT_GITHUB_{name}", "the-shop")
    sample: dict[str, Any] = {}
    exec(FIRST, sample)  # noqa: S102 - what a reader copies
    links: asyncio.Queue[ShownLink] = asyncio.Queue()
    async with sample["app"].lifespan():
        report = asyncio.create_task(sample["make_report"]("ann", links.put_nowait))
        assert (await soon(links.get())).message == "Connect GitHub"
        report.cancel()
        await asyncio.gather(report, return_exceptions=True)


async def test_second_sample_requests_user_code_until_correct() -> None:
    reported: list[str] = []
    codes = iter(["wrong", "right"])

    async def send(user: str, words: str) -> None:
        reported.append(words)

    async def code_from(user: str) -> str:
        return next(codes)

    async def wrong(typed: str) -> str | None:
        return None if typed == "right" else "Look again."

    sample: dict[str, Any] = {
        "user": "ann",
        "send": send,
        "code_from": code_from,
        "ShownLink": ShownLink,
    }
    exec(SECOND, sample)  # noqa: S102 - what a reader copies
    link = ShownLink(
        url="https://shop.example/e/x",
        kind="secret",
        message="Your key, please.",
        elicitation_id="x",
        expires_at=NOON + timedelta(minutes=5),
        needs_code=True,
        _wrong=wrong,
    )
    await sample["show"](link)
    assert reported == ["https://shop.example/e/x", "Look again."]
