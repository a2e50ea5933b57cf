"""The commands of an operator: `elicit payments`, `webhooks`, `approvals` and `pending`.

Like the command line itself it imports nothing of ours before that has checked whose it is.
"""

import argparse
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

# As the lists show it, or as a tool knows it: with its owner's tag before it.
_ID = re.compile(r"(?:[A-Za-z0-9_-]{20})?([A-Za-z0-9_-]{24})")
_DASHED = re.compile(r"-(?:[A-Za-z0-9_-]{23}|[A-Za-z0-9_-]{43})")
_PLAIN = "id:"


def say(line: str) -> None:
    """Print a line."""
    from webapp.printing import tell  # noqa: PLC0415 - by the command that prints alone

    tell(line)


def with_ids(arguments: Sequence[str]) -> list[str]:
    """The same; an id that begins as an option does is marked as none."""
    return [_PLAIN + word if _DASHED.fullmatch(word) else word for word in arguments]


def add_payments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list what was paid, the latest first")
    listing.add_argument(
        "--open",
        action="store_true",
        help="only what no call has used and nobody has back, or a bank has claimed",
    )
    listing.add_argument("--json", action="store_true", help="one JSON object a line")
    listing.set_defaults(run=_operate, work="list payments")
    showing = commands.add_parser("show", help="show one, with all that is known of it")
    showing.add_argument("id", metavar="ID", type=_id, help="as elicit payments list shows it")
    showing.set_defaults(run=_operate, work="show payment")
    refund = commands.add_parser("refund", help="give one payment back; again does nothing more")
    refund.add_argument("id", metavar="ID", type=_id, help="as elicit payments list shows it")
    refund.add_argument(
        "--amount",
        metavar="AMOUNT",
        help="only so much of it in all, as 3.00: the rest can be used; again gives no more",
    )
    refund.add_argument("--reason", metavar="WORDS", help="kept with it, here and at the provider")
    refund.add_argument("--spent", action="store_true", help="also if a call has used it")
    refund.set_defaults(run=_operate, work="refund payment")
    done = commands.add_parser(
        "done", help="list no more what was paid otherwise, or nobody could be asked about"
    )
    done.add_argument("id", metavar="ID", type=_id, help="as elicit payments list shows it")
    done.set_defaults(run=_operate, work="end payment")


def add_webhooks(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "list", help="list what came in 30 days, and how much was turned away"
    )
    listing.set_defaults(run=_operate, work="list hooks")
    for name, words in (
        ("show", "show one, with its body as it came"),
        ("replay", "take one as if it came now; what it did, it does not do again"),
    ):
        command = commands.add_parser(name, help=words)
        command.add_argument("id", metavar="ID", type=_id, help="as elicit webhooks list shows it")
        command.set_defaults(run=_operate, work=f"{name} hook")


def add_approvals(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "list", help="list what people have allowed tools, the latest first"
    )
    listing.set_defaults(run=_operate, work="list approvals")
    revoke = commands.add_parser("revoke", help="end one: the next call asks again")
    revoke.add_argument("id", metavar="ID", type=_id, help="as elicit approvals list shows it")
    revoke.set_defaults(run=_operate, work="revoke approval")
    clear = commands.add_parser("clear", help="end all, of everybody")
    clear.set_defaults(run=_operate, work="clear approvals")


def add_pending(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "list", help="list what people are asked and have not answered, the latest first"
    )
    listing.set_defaults(run=_operate, work="list pending")


def add_servers(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list the servers, and where each is served from")
    listing.set_defaults(run=_operate, work="list servers")
    accepting = commands.add_parser(
        "accept", help="a server has moved: it keeps what people connected, saved and approved"
    )
    accepting.add_argument("name", metavar="NAME", help="what it calls itself")
    accepting.add_argument("place", metavar="PLACE", help="where it is now, as its refusal says")
    accepting.set_defaults(run=_operate, work="accept server")


def add_doctor(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(run=_keep, work="doctor")


def add_backup(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="made; the key goes to FILE.key")
    parser.set_defaults(run=_keep, work="backup")


def add_restore(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", type=Path, help="as elicit backup made it")
    parser.set_defaults(run=_keep, work="restore")


def _keep(options: argparse.Namespace) -> int:
    from webapp.cli import backups  # noqa: PLC0415 - only after the same check
    from webapp.connecting import utc_now  # noqa: PLC0415

    match options.work:
        case "doctor":
            return backups.examine(os.environ, say=say)
        case "backup":
            return backups.back_up(os.environ, options.file, say=say)
        case _:
            return backups.restore(os.environ, options.file, now=utc_now(), say=say)


def _operate(options: argparse.Namespace) -> int:
    # Only after the check of whose `flows` this is.
    from webapp.cli import approvals as operator_approvals  # noqa: PLC0415
    from webapp.cli import payments as operator  # noqa: PLC0415
    from webapp.cli import pending as operator_pending  # noqa: PLC0415
    from webapp.cli import servers as known_servers  # noqa: PLC0415

    works: dict[str, Callable[[], operator.Work]] = {
        "list payments": lambda: partial(
            operator.list_payments, only_open=options.open, as_json=options.json
        ),
        "show payment": lambda: partial(operator.show_payment, id=options.id),
        "refund payment": lambda: partial(
            operator.refund_payment,
            id=options.id,
            reason=options.reason,
            also_spent=options.spent,
            amount=options.amount,
        ),
        "end payment": lambda: partial(operator.end_payment, id=options.id),
        "list hooks": lambda: operator.list_hooks,
        "show hook": lambda: partial(operator.show_hook, id=options.id),
        "replay hook": lambda: partial(operator.replay_hook, id=options.id),
        "list approvals": lambda: operator_approvals.list_approvals,
        "revoke approval": lambda: partial(operator_approvals.revoke_approval, id=options.id),
        "clear approvals": lambda: operator_approvals.clear_approvals,
        "list servers": lambda: known_servers.list_servers,
        "accept server": lambda: partial(
            known_servers.accept_server, name=options.name, place=options.place
        ),
        "list pending": lambda: operator_pending.list_pending,
    }
    return operator.operate(os.environ, works[options.work](), say=say)


def _id(text: str) -> str:
    id = text.removeprefix(_PLAIN)
    found = _ID.fullmatch(id)
    if found is None:
        raise argparse.ArgumentTypeError(f"{id!r} is no id: those have 24 letters, digits, - or _")
    return found[1]
