"""`python -m tests.page_pictures`: write the pictures of pages in docs/pictures.

`hashes.json` has a hash of the page and the style sheets of each picture. A test renders the pages
again and compares the hashes, so a picture cannot show an old page.
"""

import asyncio
import hashlib
import json
import shutil
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path

from playwright.async_api import async_playwright

from flows.elicitation.tool_call import DescribedTool
from flows.shown import Argument
from tests.browser.chrome import ARGUMENTS
from tests.support.page_site import ORIGIN, Site, visit
from tests.support.page_views import NOW, usual
from tests.support.palette import with_palette
from webapp.pages.renderer import Renderer, our_files, template_folder
from webapp.pages.views import Scope, StartAccount, StartPayment, View
from webapp.pages.views_forms import StartConfirm
from webapp.pages.views_operator import Fact, OperatorRecord
from webapp.settings.brand import Brand

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
HASHES = FOLDER / "hashes.json"
AT_MOST = 200_000  # bytes of all pictures
SCHEMES = ("light", "dark")
WIDTH = 660
BRAND = Brand(legal_name="Acme Research GmbH").of("Acme Research")
ASKED = {
    "server": "Acme Research",
    "host": "tools.acme.example",
    "client": "Claude",
    "client_id": None,
    "client_title": "Claude Desktop",
    "is_sandbox": False,
    "account": None,
    "phone_url": None,
}
DELETE = DescribedTool(
    name="delete_repo",
    title="Delete a repository",
    description="Delete a repository for good, with its issues, releases and stars.",
    arguments=(("repo", "Repository"), ("with_backups", "Delete the backups too")),
    is_destructive=True,
)


def _at(seconds: int, text: str, label: str = "") -> Fact:
    return Fact(label=label, text=text, at=NOW + timedelta(seconds=seconds))


PICTURED: Mapping[str, View] = {
    "account": usual(
        StartAccount,
        **ASKED,
        tool="list_my_repositories",
        tool_title="List my repositories",
        reason="To list the repositories that you can push to.",
        scopes=(
            Scope(words="Read and change your repositories", raw="repo", risk="write"),
            Scope(words="See your e-mail addresses", raw="user:email"),
        ),
    ),
    "payment": usual(
        StartPayment,
        **ASKED,
        tool="buy_report",
        tool_title="Buy a report",
        price="€9.00",
        what="Premium report",
        is_test=False,
        place="https://checkout.stripe.com",
    ),
    "approval": usual(
        StartConfirm,
        **ASKED,
        tool="delete_repo",
        tool_title="Delete a repository",
        described=DELETE,
        question="Delete a repository?",
        message="Run delete_repo?",
        arguments=(
            Argument(name="Repository", value="acme/website"),
            Argument(name="Delete the backups too", value="no"),
        ),
    ),
    "operator": usual(
        OperatorRecord,
        server="Acme Research",
        tab="questions",
        title="Question AZypRQoALcVVfTNLACTSFmxy",
        says="Pay €9.00: Premium report",
        facts=(
            Fact(label="Tool", text="buy_report"),
            Fact(label="Client", text="Claude Desktop"),
            Fact(label="Status", text="accepted"),
        ),
        links=(Fact(label="Payment", text="Zb51HBnU2RhQ", url="/operator/payments/x1"),),
        stages=(),
        timeline=(
            _at(0, "Asked"),
            _at(4, "Opened in a browser"),
            _at(11, "Continue pressed (1)", "sent to Stripe"),
            _at(52, "Webhook of Stripe", "checkout.session.completed, applied"),
            _at(53, "Returned from Stripe"),
            _at(54, "Paid €9.00"),
            _at(55, "Delivered to Claude Desktop"),
        ),
        log_lines=(),
        payload=None,
        shows_log=False,
        acts=(("refund", "/operator/payments/x1/refund"),),
    ),
}


def pages() -> dict[str, str]:
    """Return the HTML of each page that has pictures."""
    renderer = Renderer(folders=[template_folder()], brand=BRAND)
    return {name: renderer.render(view) for name, view in PICTURED.items()}


def hashes() -> dict[str, str]:
    """Return a hash of each page with the files that decide how it looks."""
    looks = b"".join(our_files()[name][0] for name in sorted(our_files()))
    return {
        name: hashlib.sha256(html.encode() + looks).hexdigest()[:32]
        for name, html in pages().items()
    }


async def draw() -> None:
    """Write all pictures, with few colours."""
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=ARGUMENTS
        )
        for name, html in pages().items():
            for scheme in SCHEMES:
                options = {"color_scheme": scheme, "timezone_id": "UTC", "bypass_csp": True}
                size = {"width": WIDTH, "height": 600}
                async with visit(browser, Site(html=html), viewport=size, **options) as page:
                    await page.clock.install(time=NOW)
                    await page.clock.pause_at(NOW + timedelta(seconds=1))
                    await page.goto(f"{ORIGIN}/e/abc")
                    # Remove the soft shadow: the few colours of a picture cannot show it.
                    await page.add_style_tag(content="main { box-shadow: none !important }")
                    # Show the whole page: a sticky bar would cover the middle of a long picture.
                    height = await page.evaluate("document.documentElement.scrollHeight")
                    await page.set_viewport_size({"width": WIDTH, "height": height})
                    picture = with_palette(await page.screenshot())
                    (FOLDER / f"{name}-{scheme}.png").write_bytes(picture)
        await browser.close()


def main() -> None:
    """Write the pictures and their hashes."""
    FOLDER.mkdir(exist_ok=True)
    asyncio.run(draw())
    HASHES.write_text(json.dumps(hashes(), indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
