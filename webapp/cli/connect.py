"""`elicit connect`: connect an account that a tool waits for, from a terminal (RFC 8628).

Risks: another person enters the code, with their own account or because somebody sent them the
code. Only questions of this machine's own user are therefore answered here, the code is shown only
in that user's terminal, and the user confirms the account's name before it is saved. Another risk
is text from a tool, a server or a provider that controls the terminal: all such text is printed
without control characters.
"""

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from flows.elicitation.states import Elicitation, Status
from flows.errors import ElicitError, Failed, NotConfigured, StoreUnavailable, Unreadable
from flows.oauth.authorization_code import Grant
from flows.oauth.device_flow import DeviceCode, Pending, poll, start
from flows.oauth.provider import Client
from flows.oauth.responses import TokenSet
from webapp.cli.arguments import add_port
from webapp.cli.filters import add_filters, filters_in, show_filtered
from webapp.cli.operator import operate
from webapp.cli.table import Table, add_json, age
from webapp.command import CommandRefused, connected, quieten, settings_for, under_another_secret
from webapp.oauth.clients import is_at_sandbox
from webapp.oauth.code_exchange import why_not
from webapp.printing import print_text, printed
from webapp.records.ids import tail_of
from webapp.service import Service
from webapp.settings.settings import DEFAULT_PORT, Settings

LONGEST_NAME = 80
LONGEST_QUOTATION = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Terminal:
    """The terminal of a person: output, a choice, a confirmation, and the passing of time."""

    say: Callable[[str], None]
    choose: Callable[[int], Awaitable[int | None]]  # a number from 1 to the argument, or None
    is_right: Callable[[str], Awaitable[bool]]
    pause: Callable[[timedelta], Awaitable[None]]


async def open_questions(service: Service, *, provider: str | None) -> list[Elicitation]:
    """Return the open account questions of this machine's own user, oldest first."""
    accounts = service.kinds.accounts
    waiting = await service.elicitations.rows.open_of(
        service.identity.local_owner, now=service.clock()
    )
    asked = [elicitation for elicitation in waiting if elicitation.kind == "oauth"]
    asked.sort(key=lambda one: one.created_at)
    wanted = None if provider is None else provider.casefold()
    return [one for one in asked if wanted in (None, accounts.terms(one).provider.casefold())]


async def chosen(
    service: Service, waiting: Sequence[Elicitation], terminal: Terminal
) -> Elicitation | None:
    """Return the question that the person chooses, or the only one.

    Return None if the choice is not valid.
    """
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
    """Connect the account, report the result, and return True if the account was connected.

    Raises:
        Denied: The person declined at the provider.
        Failed: The provider or the server refused.
        NotConfigured: The server has no client for this provider.
    """
    accounts, clock = service.kinds.accounts, service.elicitations.clock
    client, terms = _client(service, asked), accounts.terms(asked)
    terminal.say(_instructions(service, asked, client))
    code = await service.outbound.run(start(client, terms.asked(), now=clock()), to=client)
    terminal.say(_code_of(code))
    grant = await _answered(service, asked, code, terminal)
    is_wanted = terms.wants(grant.person)
    if is_wanted and not await terminal.is_right(await _question(service, asked, client, grant)):
        await accounts.code_exchange.revoke_grant(asked, grant, code)
        await service.elicitations.end(asked, Status.DECLINED)
        terminal.say(_nothing_stored(client))
        return False
    before, who = await service.elicitations.get(asked.id) or asked, plain(grant.person.label)
    is_connected = await accounts.code_exchange.finish(
        asked, terms, grant, token_endpoint=code.token_endpoint, client_auth=code.client_auth
    )
    if not is_connected:
        wrong = why_not(terms, grant.person, shows=plain)
        terminal.say(f"{wrong}. {_nothing_stored(client)}")
        return False
    after = await service.elicitations.get(asked.id) or asked
    terminal.say(_outcome(who, before, after))
    return True


def plain(text: str, *, limit: int = LONGEST_NAME) -> str:
    """Return foreign text on one line, shortened and without terminal control characters."""
    # Cut first: a name may have a megabyte.
    words = " ".join(printed(" ".join(text[: 4 * limit].split())).split())
    return words if len(words) <= limit else words[: limit - 1].rstrip() + "…"


def _client(service: Service, asked: Elicitation) -> Client:
    """Return our OAuth client for the question.

    Raises Failed or NotConfigured if the question needs a client that we do not have.
    """
    accounts = service.kinds.accounts
    client, terms = accounts.client_for(asked), accounts.terms(asked)
    if client is not None and client.client_id == terms.client_id:
        if client.provider.tenants and terms.tenant is None:
            raise Failed("The tool does not name the tenant, so connect the account in a browser.")
        return client.for_tenant(terms.tenant)
    if is_at_sandbox(terms.client_id):
        raise Failed("The tool asks for an account of the sandbox: connect it in a browser.")
    if client is not None:
        label = client.provider.label
        raise Failed(
            f"The tool's server uses a different client id at {label} than these settings."
        )
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
            raise Failed(
                "The account was connected in another way in the meantime. You don't need the code."
            )
        if client is None or current is None or current.status.is_final:
            raise Failed("The tool no longer waits for the account.")
        redeemed = list[TokenSet]()
        talk = poll(client, code, now=clock(), on_tokens=redeemed.append)
        try:
            answer = await service.outbound.run(talk, to=client)
        except Failed:
            for tokens in redeemed:
                await accounts.code_exchange.revoke_unidentified(asked, tokens, code)
            raise
        if not isinstance(answer, Pending):
            return answer
        code = replace(code, interval=answer.interval)


async def _question(service: Service, asked: Elicitation, client: Client, grant: Grant) -> str:
    """Return the text to confirm: the account, the account it replaces, and who would use it."""
    connections = service.kinds.accounts.connections
    key = connections.key(client, server=asked.request.server)
    held = await connections.find(asked.owner, key, account=None)
    is_named = service.kinds.accounts.terms(asked).account is not None
    swaps = held is not None and held.person_id != grant.person.id and not is_named
    instead = f" It replaces {plain(held.label)}." if held is not None and swaps else ""
    is_this = f"This is {plain(grant.person.label)} at {plain(client.provider.label)}.{instead}"
    return f"{is_this} May {_who(asked)} use it?"


def _outcome(who: str, before: Elicitation, after: Elicitation) -> str:
    if before.status is Status.ACCEPTED:
        return f"The tool had an account already. {who} is saved for the next call."
    if after.status is not Status.ACCEPTED or after.is_late:
        return f"The tool no longer waits. {who} is saved for the next call."
    return (
        "The account is connected, and the tool continues."
        if after.request.tool
        else "The account is connected."
    )


def _instructions(service: Service, asked: Elicitation, client: Client) -> str:
    """Return the request: who asks, for which account, with which scopes, and why."""
    terms, provider = service.kinds.accounts.terms(asked), client.provider
    account = f"the account {plain(terms.account)}" if terms.account else "your account"
    scopes = provider.scopes_to_request(terms.asked())
    lines = [f"{_who(asked)} asks for {account} at {plain(provider.label)}{_client_name(asked)}."]
    if not asked.request.tool:
        lines = [f"You asked under Your accounts to connect {account} again."]
    if provider.has_scopes:
        lines += ["With the account, tools can:"] if scopes else ["Tools see only who you are."]
    for scope in scopes:
        words = provider.scope_words.get(scope)
        raw = plain(scope, limit=LONGEST_QUOTATION)
        lines.append(f"  {plain(words)} ({raw})" if words else f"  {raw}")
    lines.append("All your assistants can use it. Change this at /connections.")
    if terms.reason:
        lines.append(f'The tool says: "{plain(terms.reason, limit=LONGEST_QUOTATION)}"')
    return "\n".join(lines)


def _code_of(code: DeviceCode) -> str:
    uri = plain(code.verification_uri, limit=len(code.verification_uri))
    return (
        f"Open {uri} in any browser, and enter {code.user_code}\nThe code works until "
        f"{code.expires_at:%H:%M} UTC. Never give it to anyone."
    )


def _who(asked: Elicitation) -> str:
    """Return the tool and its server, or only the server if the person asked on our page."""
    server = plain(asked.request.server) or "a server"
    return f"{plain(asked.request.tool)} of {server}" if asked.request.tool else server


def _client_name(asked: Elicitation) -> str:
    """Return the name that the client gives itself: local questions have no verified name."""
    client = plain(asked.request.client or "")
    return f', through "{client}" (its own name, not verified)' if client else ""


def _label(service: Service, asked: Elicitation) -> str:
    client = service.kinds.accounts.client_for(asked)
    terms = service.kinds.accounts.terms(asked)
    return terms.provider if client is None else client.provider.label


def _nothing_stored(client: Client) -> str:
    manage = client.provider.manage
    if manage is None:
        return "Nothing was saved."
    there = plain(manage, limit=LONGEST_QUOTATION)
    return f"Nothing was saved. You can remove the access at the provider: {there}"


COLUMNS = ("id", "provider", "tool", "server", "scopes", "account", "asked_at")


class WaitingRow(Struct, frozen=True, kw_only=True):
    """An account that a tool waits for. `account` is its name if the tool needs that account."""

    id: str
    provider: str
    tool: str
    server: str
    scopes: list[str]
    account: str | None
    asked_at: datetime


def declare(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Connect the account that your tool waits for. You enter a code in any browser, on any "
        "device. Use this for a server that you can reach only by a terminal."
    )
    parser.add_argument(
        "provider",
        nargs="?",
        metavar="PROVIDER",
        help="such as github; default: the provider that a tool waits for",
    )
    parser.add_argument(
        "--list",
        dest="only_lists",
        action="store_true",
        help="only list the accounts that tools wait for",
    )
    add_json(parser, of=WaitingRow, says="the list as one JSON array, with an object for each row")
    add_filters(parser, of=WaitingRow)
    add_port(parser, default=DEFAULT_PORT)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.only_lists or options.as_json:
        by = filters_in(vars(options).copy())
        show = partial(show_filtered, by=by, of=WaitingRow, as_json=options.as_json)
        operate(os.environ, partial(list_waiting, provider=options.provider), show=show)
        return 0
    quieten()
    settings = settings_for(os.environ, port=options.port)
    return asyncio.run(_connect(settings, options.provider))


async def list_waiting(service: Service, *, provider: str | None) -> Table[WaitingRow]:
    """List the accounts that tools of this machine's own user wait for, oldest first."""
    rows = list[WaitingRow]()
    for one in await open_questions(service, provider=provider):
        terms = service.kinds.accounts.terms(one)
        rows.append(
            WaitingRow(
                id=tail_of(one),
                provider=terms.provider,
                tool=one.request.tool,
                server=one.request.server,
                scopes=list(terms.scopes),
                account=terms.account,
                asked_at=one.created_at,
            )
        )
    nothing = "None of your tools waits for an account."
    return Table(rows=rows, columns=COLUMNS, nothing=nothing)


async def _connect(settings: Settings, provider: str | None) -> int:
    terminal = Terminal(say=print_text, choose=_choose, is_right=_is_right, pause=_pause)
    try:
        async with connected(settings) as service:
            waiting = await open_questions(service, provider=provider)
            if not waiting:
                raise CommandRefused(
                    "None of your tools waits for an account. Call the tool first, and leave it "
                    "waiting."
                )
            asked = await chosen(service, waiting, terminal)
            if asked is None:
                raise CommandRefused("You chose no account, so nothing was done.")
            is_connected = await connect_by_code(service, asked, terminal)
    except Unreadable as error:
        raise under_another_secret(settings) from error
    except StoreUnavailable as error:
        raise CommandRefused(plain(error.why, limit=LONGEST_QUOTATION)) from error
    except ElicitError as error:
        raise CommandRefused(plain(str(error), limit=LONGEST_QUOTATION)) from error
    return 0 if is_connected else 1


async def _choose(number: int) -> int | None:
    line = await _line(f"Which one? [1-{number}] ")
    return (
        int(line) if line.isascii() and line.isdigit() and len(line) <= len(str(number)) else None
    )


async def _is_right(question: str) -> bool:
    return (await _line(f"{question} [y/N] ")).lower() in ("y", "yes")


async def _line(prompt: str) -> str:
    """Return the line that the person types, or "" at the end of the input."""
    print_text(prompt, end="")
    line: str = await asyncio.to_thread(sys.stdin.readline)
    return line.strip()


async def _pause(duration: timedelta) -> None:
    await asyncio.sleep(duration.total_seconds())
