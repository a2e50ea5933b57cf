"""The settings of notifications: `[notify.NAME]` in `elicit.toml`, and `ELICIT_NOTIFY_{NAME}`.

Risk: an address has a typing error, and nobody notices until a message is missing. Therefore
Apprise checks each address when the settings are read.

Risk: other users can read a password in an address. Therefore a file that others can read must not
contain a password, and errors show the table and the position of an address, never the address.
"""

import importlib.util
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

from webapp.languages import known_tag
from webapp.notifications.delivery import (
    ADDRESSES_AT_MOST,
    AFTER_FOR_PEOPLE,
    CheckedAddress,
    NotifyTable,
    check_addresses,
)
from webapp.settings import parsers
from webapp.settings.identity import ISSUER, IdentitySettings, issuer_faults
from webapp.settings.table import Setting, Values

CHARACTERS_AT_MOST: Final = 2000  # of an address
REMINDERS_AT_MOST: Final = 20
TABLES_AT_MOST: Final = 100
_DURATION = 'a duration in quotation marks, such as "4h"'
_TYPES: Mapping[str, Any] = {**parsers.TYPES, _DURATION: str}
_KEYS: Mapping[str, str] = {
    "to": parsers.TEXTS,
    "after": _DURATION,
    "remind_after": _DURATION,
    "remind_at_most": parsers.NUMBER,
    "escalate_after": _DURATION,
    "escalate_to": parsers.TEXTS,
    "with_question": parsers.FLAG,
    "language": parsers.TEXT,
    "subjects": parsers.TEXTS,
    "issuers": parsers.TEXTS,
    "users": parsers.TEXTS,
    "local": parsers.FLAG,
}
_MONTH: Final = timedelta(days=31)
_PARSERS: Mapping[str, Callable[[str], timedelta | str]] = {
    "language": known_tag,
    "after": lambda text: timedelta() if text == "0" else parsers.duration(_MONTH, "31 days")(text),
    **dict.fromkeys(
        ("remind_after", "escalate_after"),
        parsers.duration(_MONTH, "31 days", at_least=timedelta(minutes=1)),
    ),
}
_MISSING = "Apprise is not installed. Install it with: pip install 'elicit-url[notify]'"


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())  # an address may contain commas


NOTIFY = Setting(
    name="ELICIT_NOTIFY_{NAME}",
    parse=_words,
    says="addresses that contain a password or a token, in addition to those in `to` of "
    "`[notify.NAME]` in `elicit.toml`, separated by spaces: "
    "[notifications](../how-to/approvals.md#notifications)",
)


def read_notify_tables(tables: Mapping[str, Any], problems: list[str]) -> tuple[NotifyTable, ...]:
    """Return the tables of the file, and add faults to `problems`."""
    found = [
        _table(name, table, problems)
        for name, table in parsers.tables_in(tables, kind="notify", built_in=(), problems=problems)
    ]
    if len(tables) > TABLES_AT_MOST:
        problems.append(f"notify: there are more than {TABLES_AT_MOST} tables.")
    return tuple(table for table in found if table is not None)


def _table(name: str, table: Mapping[str, Any], problems: list[str]) -> NotifyTable | None:
    faults = list[str]()
    read = parsers.converted(table, _KEYS, faults, types=_TYPES)
    for key, parse in _PARSERS.items():
        if key in read:
            try:
                read[key] = parse(read[key])
            except ValueError as error:
                faults += [f"{key}: {sentence}" for sentence in error.args]
    if not 1 <= read.get("remind_at_most", 1) <= REMINDERS_AT_MOST:
        faults.append(f"remind_at_most: must be a whole number from 1 to {REMINDERS_AT_MOST}.")
    for key, other in (
        ("remind_at_most", "remind_after"),
        ("escalate_after", "escalate_to"),
        ("escalate_to", "escalate_after"),
    ):
        if key in table and other not in table:
            faults.append(f"{key}: has no effect without {other}. Add {other}.")
    faults += parsers.user_faults(read)
    problems += [f"notify.{name}.{fault}" for fault in faults]
    if faults:
        return None
    for key in ("subjects", "issuers", "users"):
        read[key] = frozenset(read.get(key, ()))
    read["is_local"] = read.pop("local", False)
    lists_people = read["subjects"] or read["users"] or read["is_local"]
    read.setdefault("after", AFTER_FOR_PEOPLE if lists_people else timedelta())
    return NotifyTable(name=name, **read)


class _Source(NamedTuple):
    """The place of an address in the settings, for errors. `position` counts from 1."""

    setting: str
    position: int
    is_in_file: bool

    def __str__(self) -> str:
        return f"{self.setting}, address {self.position}"


def with_addresses(
    tables: Sequence[NotifyTable], values: Values, *, who: IdentitySettings, config: Path
) -> tuple[NotifyTable, ...]:
    """Return the tables with the addresses from the environment. Append faults to the problems.

    `config` is the file of the tables. If an entry of `escalate_to` is the name of a table, it
    stands for the addresses of that table.
    """
    by_name = {table.name: table for table in tables}
    places = {name: [*_places(table, values)] for name, table in by_name.items()}
    named = {one for table in tables for one in table.escalate_to if "://" not in one}
    values.problems += [
        f"ELICIT_CONFIG: {fault}"
        for table in tables
        for fault in _faults(
            table,
            by_name,
            who=who,
            has_address=bool(places[table.name]),
            is_named=table.name in named,
        )
    ]
    found = [
        replace(
            table,
            to=tuple(address for _, address in places[table.name]),
            escalate_to=tuple(
                address
                for entry in table.escalate_to
                for address in (
                    [entry] if "://" in entry else [address for _, address in places.get(entry, ())]
                )
            ),
        )
        for table in tables
    ]
    for table in found:
        for key, addresses in (("to", table.to), ("escalate_to", table.escalate_to)):
            if len(addresses) > ADDRESSES_AT_MOST:
                values.problems.append(
                    f"ELICIT_CONFIG: notify.{table.name}.{key}: there are {len(addresses)} "
                    f"addresses, and {ADDRESSES_AT_MOST} at most; use a mailing list or a channel."
                )
    placed = [one for name in places for one in places[name]]
    placed += [
        (_Source(f"notify.{table.name}.escalate_to", number, is_in_file=True), entry)
        for table in tables
        for number, entry in enumerate(table.escalate_to, 1)
        if "://" in entry
    ]
    values.problems += _address_faults(placed, config=config)
    return tuple(found)


def _places(table: NotifyTable, values: Values) -> Iterator[tuple[_Source, str]]:
    for number, address in enumerate(table.to, 1):
        yield _Source(f"notify.{table.name}.to", number, is_in_file=True), address
    row = NOTIFY.of(table.name)
    addresses: tuple[str, ...] = values.read(row)
    for number, address in enumerate(addresses, 1):
        yield _Source(row.name, number, is_in_file=False), address


def _faults(
    table: NotifyTable,
    by_name: Mapping[str, NotifyTable],
    *,
    who: IdentitySettings,
    has_address: bool,
    is_named: bool,
) -> Iterator[str]:
    place, approvers = f"notify.{table.name}", {one.name for one in who.approvers}
    if not has_address:
        yield (
            f"{place}: has no address. Add to, or set {NOTIFY.of(table.name).name} to addresses."
        )
    if not table.lists_people and not is_named and table.name not in approvers:
        yield (
            f"{place}: nobody would be notified, because [approvers.{table.name}] does not exist. "
            f"Rename the table to one of your approvers, or add subjects, users or local."
            + parsers.meant(table.name, approvers)
        )
    if table.subjects and who.client is None:
        yield f"{place}.subjects: needs {ISSUER.name}, the issuer where these people sign in."
    elif table.subjects:
        yield from (f"{place}.{fault}" for fault in issuer_faults(who, table.issuers))
    for number, entry in enumerate(table.escalate_to, 1):
        if "://" not in entry and entry not in by_name:
            yield (
                f"{place}.escalate_to, entry {number}: is neither an address nor the name of a "
                f"table [notify.NAME]."
            )


def _address_faults(addresses: Sequence[tuple[_Source, str]], *, config: Path) -> Iterator[str]:
    """Yield a sentence for each address that Apprise cannot use, without the address."""
    if not addresses:
        return
    plain = list[tuple[_Source, str]]()
    for place, address in addresses:
        if "://" not in address or not address.isprintable() or " " in address:
            yield (
                f"{_of(place)}: is not an address. Write an address in Apprise's format, such as "
                f"mailto://user:password@example.com."
            )
        elif len(address) > CHARACTERS_AT_MOST:
            yield f"{_of(place)}: must not be longer than {CHARACTERS_AT_MOST:,} characters."
        else:
            plain.append((place, address))
    if importlib.util.find_spec("apprise") is None:
        yield f"ELICIT_CONFIG: {plain[0][0] if plain else addresses[0][0]}: {_MISSING}"
        return
    try:
        checked = check_addresses([address for _, address in plain])
    except OSError as error:
        yield f"ELICIT_CONFIG: the addresses of [notify] could not be checked: {error}."
        return
    for (place, address), one in zip(plain, checked, strict=True):
        if one.fault is not None:
            yield f"{_of(place)}: {_why(address, one)}"
        elif one.has_secret and place.is_in_file and _others_can_read(config):
            yield (
                f"{_of(place)}: contains a password or a token, and other users can read "
                f"{config}. Run chmod 600 on the file, or move the address to "
                f"{NOTIFY.of(place.setting.split('.')[1]).name}."
            )


def _of(place: _Source) -> str:
    return f"ELICIT_CONFIG: {place}" if place.is_in_file else str(place)


def _why(address: str, checked: CheckedAddress) -> str:
    # A scheme has only letters. Anything else may be a part of a password, so it is not shown.
    scheme = address.partition("://")[0]
    service = f"{scheme}://" if scheme.isalnum() and len(scheme) <= 20 else "its service"
    match checked.fault:
        case "scheme":
            near = f" Perhaps {checked.near[0]}:// is meant." if checked.near else ""
            if scheme in ("http", "https"):
                near = (
                    " For a web hook, write json:// or jsons:// instead. If it is the address of a "
                    "chat's web hook, a part is missing or misspelt."
                )
            return f"Apprise has no service {service}.{near}"
        case "library":
            return f"Apprise needs another library for {service}, which is not installed."
        case _:
            return (
                f"it is not a valid address of {service}: a part is missing or misspelt. Compare "
                "it with Apprise's page about this service."
            )


def _others_can_read(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & stat.S_IROTH)
    except OSError:
        return False
