"""Connecting an account in a terminal, where the person has no browser here (RFC 8628).

What could go wrong: a code that somebody else enters, with their own account or for a person who
was sent it. So only questions of this machine's own user are answered here, the code is shown in
that user's terminal alone, and the account is named before it is kept.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta

from msgspec.structs import replace

from flows.elicitation import Elicitation, Status
from flows.errors import Failed, NotConfigured
from flows.oauth import Grant
from flows.oauth_device import DeviceCode, Pending, poll, start
from webapp.service import Service


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """What is said there, how a yes is asked for, and how time passes."""

    say: Callable[[str], None]
    is_right: Callable[[str], Awaitable[bool]]
    pause: Callable[[timedelta], Awaitable[None]]


async def open_questions(service: Service, *, provider: str | None) -> list[Elicitation]:
    """The accounts that tools of this machine's own user wait for, oldest first."""
    accounts = service.kinds.accounts
    waiting = await service.elicitations.open_of(service.identity.local_owner)
    asked = [elicitation for elicitation in waiting if elicitation.kind == "oauth"]
    return [one for one in asked if provider in (None, accounts.terms(one).provider)]


async def connect_by_code(service: Service, asked: Elicitation, terminal: Terminal) -> bool:
    """Whether the account is connected, and the tool goes on.

    Raises Denied for the person's no at the provider, Failed, NotConfigured.
    """
    accounts, clock = service.kinds.accounts, service.elicitations.clock
    client = accounts.client_for(asked)
    if client is None:
        raise NotConfigured(f"ELICIT_{accounts.terms(asked).provider.upper()}_CLIENT_ID")
    talk = start(client, accounts.terms(asked).scopes, now=clock())
    code = await service.outbound.run(talk)
    terminal.say(_told(code))
    grant = await _answered(service, asked, code, terminal)
    label, who = client.provider.label, grant.person.label
    use = f"This is {who} at {label}. May {asked.asked.tool} of {asked.asked.server} use it?"
    if not await terminal.is_right(use):
        await accounts.grants.give_back(asked, grant, code)
        await service.elicitations.end(asked, Status.DECLINED)
        terminal.say(f"Nothing was kept. {_remove_at(client.provider.manage)}")
        return False
    return await accounts.grants.take(asked, grant, token=code.token, client_auth=code.client_auth)


async def _answered(
    service: Service, asked: Elicitation, code: DeviceCode, terminal: Terminal
) -> Grant:
    accounts, clock = service.kinds.accounts, service.elicitations.clock
    while True:
        await terminal.pause(code.interval)
        client, current = accounts.client_for(asked), await service.elicitations.get(asked.id)
        if client is None or current is None or current.status.is_final:
            raise Failed("The tool does not wait for it any more.")
        answer = await service.outbound.run(poll(client, code, now=clock()))
        if not isinstance(answer, Pending):
            return answer
        code = replace(code, interval=answer.interval)


def _told(code: DeviceCode) -> str:
    return (
        f"Open {code.verification_uri} in any browser, and enter {code.user_code}\n"
        f"It works until {code.expires_at:%H:%M} UTC. Give the code to nobody."
    )


def _remove_at(manage: str | None) -> str:
    return f"What the provider keeps of it can be removed at {manage}" if manage else ""
