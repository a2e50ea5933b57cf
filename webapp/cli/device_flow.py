"""Connecting an account in a terminal, where the person has no browser here (RFC 8628).

What could go wrong: a code that somebody else enters, with their own account or for a person who
was sent it. So only questions of this machine's own user are answered here, the code is shown in
that user's terminal alone, and the account is named before it is kept. And words of a tool, a
server or a provider that steer the terminal: they stand there without what it would obey.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Status
from flows.errors import Failed, NotConfigured
from flows.oauth.authorization_code import Grant
from flows.oauth.device_flow import DeviceCode, Pending, poll, start
from flows.oauth.provider import Client
from webapp.cli.table import age
from webapp.oauth.clients import is_at_sandbox
from webapp.oauth.code_exchange import why_not
from webapp.printing import printed
from webapp.service import Service

LONGEST_NAME = 80
LONGEST_QUOTATION = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """What is said there, how one of several is chosen, how a yes is asked for, how time passes."""

    say: Callable[[str], None]
    choose: Callable[[int], Awaitable[int | None]]  # from 1 to so many; None for none of them
    is_right: Callable[[str], Awaitable[bool]]
    pause: Callable[[timedelta], Awaitable[None]]


async def open_questions(service: Service, *, provider: str | None) -> list[Elicitation]:
    """The accounts that tools of this machine's own user wait for, oldest first."""
    accounts = service.kinds.accounts
    waiting = await service.elicitations.open_of(service.identity.local_owner)
    asked = [elicitation for elicitation in waiting if elicitation.kind == "oauth"]
    asked.sort(key=lambda one: one.created_at)
    wanted = None if provider is None else provider.casefold()
    return [one for one in asked if wanted in (None, accounts.terms(one).provider.casefold())]


async def chosen(
    service: Service, waiting: Sequence[Elicitation], terminal: Terminal
) -> Elicitation | None:
    """The one to answer; where there are several, the one that the person names."""
    if len(waiting) == 1:
        return waiting[0]
    now = service.clock()
    for number, one in enumerate(waiting, start=1):
        terms = service.kinds.accounts.terms(one)
        what = " ".join([_label(service, one), *terms.scopes])
        account = f", as {plain(terms.account)}" if terms.account else ""
        since = age(one.created_at, now)
        terminal.say(f"{number}. {_who(one)}: {plain(what)}{account} ({since})")
    number = await terminal.choose(len(waiting)) or 0
    return waiting[number - 1] if 0 < number <= len(waiting) else None


async def connect_by_code(service: Service, asked: Elicitation, terminal: Terminal) -> bool:
    """Whether the account is connected; what became of it is said.

    Raises Denied for the person's no at the provider, Failed, NotConfigured.
    """
    accounts, clock = service.kinds.accounts, service.elicitations.clock
    client, terms = _client(service, asked), accounts.terms(asked)
    terminal.say(_told(service, asked, client))
    code = await service.outbound.run(start(client, terms.asked(), now=clock()), to=client)
    terminal.say(_told_code(code))
    grant = await _answered(service, asked, code, terminal)
    is_wanted = terms.wants(grant.person)
    if is_wanted and not await terminal.is_right(await _question(service, asked, client, grant)):
        await accounts.grants.revoke_grant(asked, grant, code)
        await service.elicitations.end(asked, Status.DECLINED)
        terminal.say(_nothing_kept(client))
        return False
    before, who = await service.elicitations.get(asked.id) or asked, plain(grant.person.label)
    token, client_auth = code.token, code.client_auth
    if not await accounts.grants.take(asked, grant, token=token, client_auth=client_auth):
        wrong = why_not(terms, grant.person, shows=plain)
        terminal.say(f"{wrong}. {_nothing_kept(client)}")
        return False
    after = await service.elicitations.get(asked.id) or asked
    terminal.say(_outcome(who, before, after))
    return True


def plain(text: str, *, limit: int = LONGEST_NAME) -> str:
    """Words that are not ours, on one line, without what a terminal obeys or turns around."""
    # Cut first: a name may be a megabyte long.
    words = " ".join(printed(" ".join(text[: 4 * limit].split())).split())
    return words if len(words) <= limit else words[: limit - 1].rstrip() + "…"


def _client(service: Service, asked: Elicitation) -> Client:
    """Ours at the provider, where the question was asked as the same."""
    accounts = service.kinds.accounts
    client, terms = accounts.client_for(asked), accounts.terms(asked)
    if client is not None and client.client_id == terms.client_id:
        return client
    if is_at_sandbox(terms.client_id):
        raise Failed(
            "The tool asks for an account of the sandbox, which is connected in a browser only."
        )
    if client is not None:
        raise Failed("The server is registered there as another app than these settings say.")
    name = terms.provider.upper()
    raise NotConfigured(f"ELICIT_{name}_CLIENT_ID", f"ELICIT_{name}_CLIENT_SECRET")


async def _answered(
    service: Service, asked: Elicitation, code: DeviceCode, terminal: Terminal
) -> Grant:
    accounts, clock = service.kinds.accounts, service.elicitations.clock
    while True:
        await terminal.pause(code.interval)
        client, current = accounts.client_for(asked), await service.elicitations.get(asked.id)
        if current is not None and current.status is Status.ACCEPTED:
            raise Failed("It was connected in another way meanwhile. The code is not needed.")
        if client is None or current is None or current.status.is_final:
            raise Failed("The tool does not wait for it any more.")
        answer = await service.outbound.run(poll(client, code, now=clock()), to=client)
        if not isinstance(answer, Pending):
            return answer
        code = replace(code, interval=answer.interval)


async def _question(service: Service, asked: Elicitation, client: Client, grant: Grant) -> str:
    """Whose account it is, whose place it would take, and who would use it."""
    connections = service.kinds.accounts.connections
    key = connections.key(client, server=asked.asked.server)
    held = await connections.find(asked.owner, key, account=None)
    is_named = service.kinds.accounts.terms(asked).account is not None
    swaps = held is not None and held.person_id != grant.person.id and not is_named
    instead = f" It takes the place of {plain(held.label)}." if held is not None and swaps else ""
    is_this = f"This is {plain(grant.person.label)} at {plain(client.provider.label)}.{instead}"
    return f"{is_this} May {_who(asked)} use it?"


def _outcome(who: str, before: Elicitation, after: Elicitation) -> str:
    if before.status is Status.ACCEPTED:
        return f"The tool had an account already. {who} is kept for the next call."
    if after.status is not Status.ACCEPTED or after.is_late:
        return f"The tool does not wait any more. {who} is kept for the next call."
    return "It is connected, and the tool goes on." if after.asked.tool else "It is connected."


def _told(service: Service, asked: Elicitation, client: Client) -> str:
    """Who asks, for what and why."""
    terms, provider = service.kinds.accounts.terms(asked), client.provider
    account = f"the account {plain(terms.account)}" if terms.account else "your account"
    scopes = provider.asks(terms.asked())
    lines = [f"{_who(asked)} asks for {account} at {plain(provider.label)}{_through(asked)}."]
    if not asked.asked.tool:
        lines = [f"You asked on the page of connected accounts to connect {account} again."]
    if provider.has_scopes:
        lines += ["What it may do there:"] if scopes else ["It learns only who you are there."]
    for scope in scopes:
        words = provider.scope_words.get(scope)
        raw = plain(scope, limit=LONGEST_QUOTATION)
        lines.append(f"  {plain(words)} ({raw})" if words else f"  {raw}")
    lines.append("Any client of yours may use it there; the page /connections keeps it to some.")
    if terms.reason:
        lines.append(f'Why, in its own words: "{plain(terms.reason, limit=LONGEST_QUOTATION)}"')
    return "\n".join(lines)


def _told_code(code: DeviceCode) -> str:
    uri = plain(code.verification_uri, limit=len(code.verification_uri))
    return (
        f"Open {uri} in any browser, and enter {code.user_code}\n"
        f"It works until {code.expires_at:%H:%M} UTC. Give the code to nobody."
    )


def _who(asked: Elicitation) -> str:
    """The tool of the server; the server where the person asked on its page."""
    server = plain(asked.asked.server) or "a server"
    return f"{plain(asked.asked.tool)} of {server}" if asked.asked.tool else server


def _through(asked: Elicitation) -> str:
    """The client: only questions of this machine are answered here, where none is verified."""
    client = plain(asked.asked.client or "")
    return f', through what calls itself "{client}"' if client else ""


def _label(service: Service, asked: Elicitation) -> str:
    client = service.kinds.accounts.client_for(asked)
    terms = service.kinds.accounts.terms(asked)
    return terms.provider if client is None else client.provider.label


def _nothing_kept(client: Client) -> str:
    manage = client.provider.manage
    if manage is None:
        return "Nothing was kept."
    there = plain(manage, limit=LONGEST_QUOTATION)
    return f"Nothing was kept. What the provider keeps of it can be removed at {there}"
