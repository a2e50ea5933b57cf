"""The commands of an operator: `elicit payments`, `elicit webhooks`.

Like the command line itself it imports nothing of ours before that has checked whose it is.
"""

import argparse
import os
import re
from collections.abc import Sequence
from functools import partial

# As the lists show it, or as a tool knows it: with its owner's tag before it.
_ID = re.compile(r"(?:[A-Za-z0-9_-]{20})?([A-Za-z0-9_-]{24})")
_DASHED = re.compile(r"-(?:[A-Za-z0-9_-]{23}|[A-Za-z0-9_-]{43})")
_PLAIN = "id:"


def with_ids(arguments: Sequence[str]) -> list[str]:
    """The same; an id that begins as an option does is marked as none."""
    return [_PLAIN + word if _DASHED.fullmatch(word) else word for word in arguments]


def add_payments(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="list what was paid, the latest first")
    listing.add_argument(
        "--open", action="store_true", help="only what no call has used and nobody has back"
    )
    listing.set_defaults(run=_list_payments)
    refund = commands.add_parser("refund", help="give one payment back; again does nothing more")
    refund.add_argument("id", metavar="ID", type=_id, help="as elicit payments list shows it")
    refund.add_argument("--reason", metavar="WORDS", help="kept with it, here and at the provider")
    refund.add_argument("--spent", action="store_true", help="also if a call has used it")
    refund.set_defaults(run=_refund_payment)
    done = commands.add_parser(
        "done", help="list no more what was paid otherwise, or nobody could be asked about"
    )
    done.add_argument("id", metavar="ID", type=_id, help="as elicit payments list shows it")
    done.set_defaults(run=_end_payment)


def add_webhooks(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    listing = commands.add_parser(
        "list", help="list what came in 30 days, and how much was turned away"
    )
    listing.set_defaults(run=_list_hooks)
    for name, run, words in (
        ("show", _show_hook, "show one, with its body as it came"),
        ("replay", _replay_hook, "take one as if it came now; what it did, it does not do again"),
    ):
        command = commands.add_parser(name, help=words)
        command.add_argument("id", metavar="ID", type=_id, help="as elicit webhooks list shows it")
        command.set_defaults(run=run)


def _list_payments(options: argparse.Namespace) -> int:
    from webapp.operator import list_payments, operate  # noqa: PLC0415 - only after its check

    return operate(os.environ, partial(list_payments, only_open=options.open), say=print)


def _refund_payment(options: argparse.Namespace) -> int:
    from webapp.operator import operate, refund_payment  # noqa: PLC0415 - only after its check

    work = partial(refund_payment, id=options.id, reason=options.reason, also_spent=options.spent)
    return operate(os.environ, work, say=print)


def _end_payment(options: argparse.Namespace) -> int:
    from webapp.operator import end_payment, operate  # noqa: PLC0415 - only after its check

    return operate(os.environ, partial(end_payment, id=options.id), say=print)


def _list_hooks(_: argparse.Namespace) -> int:
    from webapp.operator import list_hooks, operate  # noqa: PLC0415 - only after its check

    return operate(os.environ, list_hooks, say=print)


def _show_hook(options: argparse.Namespace) -> int:
    from webapp.operator import operate, show_hook  # noqa: PLC0415 - only after its check

    return operate(os.environ, partial(show_hook, id=options.id), say=print)


def _replay_hook(options: argparse.Namespace) -> int:
    from webapp.operator import operate, replay_hook  # noqa: PLC0415 - only after its check

    return operate(os.environ, partial(replay_hook, id=options.id), say=print)


def _id(text: str) -> str:
    id = text.removeprefix(_PLAIN)
    found = _ID.fullmatch(id)
    if found is None:
        raise argparse.ArgumentTypeError(f"{id!r} is no id: those have 24 letters, digits, - or _")
    return found[1]
