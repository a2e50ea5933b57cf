"""People who type the page's one-time code into the chat."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from flows import elicit
from tests.support.mcp_server import Caller, Page, Person, ServerEnv, caller_of, new_server
from webapp.settings.identity import IdentitySettings

# A forwarded request never counts as a request of this machine's user.
FROM_AFAR = {"x-forwarded-for": "203.0.113.7"}
ANONYMOUS = IdentitySettings(asks_anonymous=True)
WORDS = "Only for the person who asked"


def shop(server: Any) -> Any:
    @server.tool()
    async def visit() -> str:
        await elicit.url(WORDS, "https://shop.example/terms")
        return "done"

    @server.tool()
    async def key() -> str:
        await elicit.secret("Your key")
        return "typed"

    return server


@asynccontextmanager
async def nameless(
    revision: str, *, library: str = "mcp", **options: Any
) -> AsyncIterator[tuple[ServerEnv, Caller, asyncio.Queue[str]]]:
    """Provide an anonymous caller, and a queue of the codes that are typed into its form."""
    typed = asyncio.Queue[str]()
    server = shop(new_server(library))
    about = {"headers": FROM_AFAR, "typed": typed, **options}
    async with caller_of(server, revision, who=ANONYMOUS, **about) as (env, caller):
        yield env, caller, typed


async def code_for(person: Person, link: str) -> str:
    """Press the button that shows the code, and return the code."""
    page = await person.visit(link)
    assert WORDS not in page.text
    pressed = await person.press(link, to="/code")
    assert pressed.status == 303
    return code_on(await person.visit(link))


def code_on(page: Page) -> str:
    found = re.search(r"[B-Z]{4}-[B-Z]{4}", page.text)
    assert found is not None, page.text
    return found[0]


async def confirmed(env: ServerEnv, link: str) -> None:
    async with asyncio.timeout(300):
        while True:
            row = await env.service.elicitations.get(env.id_of(link))
            assert row is not None
            if row.binding is not None and row.binding.confirmed_at is not None:
                return
            await asyncio.sleep(0)
