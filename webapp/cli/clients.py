"""`elicit clients`: list what each client did with links and forms, or forget a client."""

import argparse

from webapp.cli.arguments import add_id, commands_of
from webapp.cli.operator import does, lists
from webapp.cli.table import Table, find_by_prefix
from webapp.operations.rows import ClientRow, client_row
from webapp.records.ids import tail_of
from webapp.service import Service

COLUMNS = ("id", "name", "version", "owner", "forms", "links", "confirms", "seen_at", "until")


def declare(parser: argparse.ArgumentParser) -> None:
    add_command = commands_of(parser)
    words = "list how clients handled the forms and links that they received, newest first"
    lists(add_command("list", help=words), list_clients, of=ClientRow)
    forget = add_command(
        "forget", help="forget one client; the server then sends it forms and links again"
    )
    add_id(forget, shown_by="clients")
    does(forget, forget_client)
    does(add_command("clear", help="forget all clients of all people"), clear_clients)


async def list_clients(service: Service) -> Table[ClientRow]:
    """List the clients of all owners, the latest first."""
    found = await service.clients.all()
    nothing = "No client is remembered."
    return Table(rows=[*map(client_row, found)], columns=COLUMNS, nothing=nothing)


async def forget_client(service: Service, id: str) -> list[str]:
    """Forget a client, so that the server sends the client forms and links again.

    Raises CommandRefused.
    """
    there = {tail_of(one): one for one in await service.clients.all()}
    meant = find_by_prefix(id, there, what="client", shown_by="clients list")
    await service.clients.forget(meant.id)
    return ["The client is forgotten. The server sends forms and links to that client again."]


async def clear_clients(service: Service) -> list[str]:
    """Forget the clients of all owners."""
    count = await service.clients.forget()
    if not count:
        return ["No client is remembered."]
    return [f"{count} {'is' if count == 1 else 'are'} forgotten."]
