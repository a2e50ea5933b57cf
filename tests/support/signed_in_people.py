"""People who sign in at an issuer, and callers with the issuer's tokens."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from flows import elicit
from tests.support.issuer import Issuing, issuing
from tests.support.mcp_server import LEGACY, ServerEnv, new_server, server_env
from webapp.settings.quotas import PolicySettings

HER_WORDS = "Only for the eyes of Alice"


def shop(library: str = "mcp") -> Any:
    return add_visit(new_server(library))


def add_visit(server: Any) -> Any:
    @server.tool()
    async def visit() -> str:
        await elicit.url(HER_WORDS, "https://shop.example/terms")
        return "done"

    return server


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedInEnv:
    """A server whose users sign in at an issuer, and the issuer."""

    env: ServerEnv
    issuer: Issuing

    def bearer(self, subject: str | None, **claims: Any) -> dict[str, str]:
        return self.issuer.bearer(subject, audience=self.env.mcp_url, **claims)


@asynccontextmanager
async def signed_in_env(
    library: str = "mcp", *, policies: PolicySettings | None = None, **options: Any
) -> AsyncIterator[SignedInEnv]:
    async with (
        issuing() as issuer,
        server_env(shop(library), who=issuer.who(**options), policies=policies) as env,
    ):
        yield SignedInEnv(env=env, issuer=issuer)


@asynccontextmanager
async def asked_by_alice(revision: str = LEGACY) -> AsyncIterator[tuple[SignedInEnv, str]]:
    """Start a call by Alice that waits for a visit. Yield the environment and the link to visit."""
    async with (
        signed_in_env() as here,
        here.env.caller(revision, headers=here.bearer("alice")) as caller,
    ):
        caller.begin("visit")
        yield here, await caller.link()
