"""Callers whose links other people try, and a check that a question is unchanged."""

from typing import Any

from flows.elicitation.states import Status
from tests.support.mcp_server import Person, ServerEnv, _Posts
from tests.support.oauth_env import Asking, OAuthEnv, approve


async def sent_out(here: OAuthEnv, *scopes: str, **about: Any) -> tuple[Asking, Person, str, str]:
    """Ask for an account and approve at the provider.

    Return the call, the person, the link and the callback URL.
    """
    asked, person = here.ask(*scopes or ("repo",), **about), await here.person()
    link = await asked.link()
    return asked, person, link, await approve(person, await person.go_on(link))


async def is_untouched(here: OAuthEnv, link: str) -> bool:
    """Return True if the question is unchanged: no exchange, no account, and still open."""
    row = await here.row(link)
    return (
        here.gate.exchanges == 0
        and row.status is Status.OPENED
        and row.attempt is not None
        and row.attempt.state is not None
        and not await here.connections()
    )


def caller_at(here: OAuthEnv, revision: str) -> Any:
    env = ServerEnv(
        url=here.url,
        service=here.service,
        settings=here.settings,
        posts=_Posts(here.gate),
    )
    return env.caller(revision)
