"""`elicit doctor`: find problems of settings, keys, store, address and registrations, with fixes.

Risks: the report says that all is well although a check did not happen. The report therefore names
everything that cannot be checked from here.
"""

import argparse
import asyncio
import os
import sqlite3
from collections.abc import Sequence
from contextlib import AsyncExitStack, closing
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from flows.errors import StoreUnavailable, Unreadable
from flows.oauth.dpop import ERRORS as PROOF_ERRORS
from flows.shown import counted
from webapp.cli.examination import (
    Finding,
    Surroundings,
    certificate_end,
    examine_outside,
    note,
    ok,
    wrong,
)
from webapp.cli.table import add_json, as_ascii
from webapp.command import (
    CommandRefused,
    must_exist,
    opened_store,
    quieten,
    settings_for,
    under_another_secret,
)
from webapp.connecting import outbound_of, utc_now
from webapp.deadline import Clock
from webapp.http.address import TrustedHost
from webapp.http.client import Outbound
from webapp.printing import print_text
from webapp.records.high_water import HighWater
from webapp.records.ids import Notification
from webapp.records.owners import last_backup, must_be_servable, open_owners
from webapp.service import Service, ServiceOptions, open_service
from webapp.settings.key_usage import seconds_ahead
from webapp.settings.settings import URL, Settings
from webapp.stores import Clocked, Networked, Replicated, Store
from webapp.stores.opening import SQLITE

_MARKS = {"ok": "ok", "note": "--", "wrong": "NO"}
BACKUP_AGE_AT_MOST = timedelta(days=7)
CLOCK_SECONDS_AT_MOST = 1.0
STEP_BACK_REPORTED_FOR = timedelta(days=30)


def declare(parser: argparse.ArgumentParser) -> None:
    add_json(parser, of=Finding, says="one JSON array, with an object for each check")
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    quieten()
    found = asyncio.run(_examine())
    if options.as_json:
        print_text(as_ascii([msgspec.to_builtins(each) for each in found]))
    else:
        for each in found:
            print_text(f"{_MARKS[each.standing]}  {each.subject:<12}{each.says}")
            if each.fix is not None:
                print_text(f"    {'':<12}do: {each.fix}")
    return int(any(each.standing == "wrong" for each in found))


async def _examine() -> list[Finding]:
    try:
        settings = settings_for(os.environ)
    except CommandRefused as refusal:
        return [wrong("settings", sentence) for sentence in refusal.sentences]
    key = settings.key_file.path if settings.key_file is not None else "ELICIT_SECRET"
    address = settings.url
    if not os.environ.get(URL.name):
        address += " (the default port of elicit serve; --port or ELICIT_URL changes it)"
    found = [ok("settings", address), ok("key", str(key))]
    async with AsyncExitStack() as stack:
        try:
            must_exist(settings, os.environ)
        except CommandRefused as refusal:
            return [*found, _of_store(str(refusal))]
        outbound = await outbound_of(stack, _trusting_itself(settings))
        around = Surroundings(outbound=outbound, now=utc_now, certificate=certificate_end)
        found += await examine_store(settings, outbound=outbound, clock=utc_now)
        found += await examine_outside(settings, around)
    return found


def _trusting_itself(settings: Settings) -> Settings:
    """Return the settings with our public host trusted: its IP address may be private here."""
    parts = urlsplit(settings.url)
    own = TrustedHost(port=parts.port or 443, name=parts.hostname or "")
    return replace(settings, trusted_hosts=(*settings.trusted_hosts, own))


async def examine_store(
    settings: Settings, *, outbound: Outbound, clock: Clock = utc_now
) -> list[Finding]:
    """Check the store: whether the secrets open it, and which records need an operator."""
    found = list[Finding]()
    try:
        async with opened_store(settings) as store:
            found.append(ok("opened", f"{store.address or settings.store}"))
            if store.address is None:
                fix = "set ELICIT_STORE to sqlite:////var/lib/elicit/elicit.db, or unset it"
                says = "memory: loses everything when its process ends"
                found.append(wrong("kept", says, fix=fix))
            found += await _store_clock(store, clock)
            if isinstance(store, Replicated):
                found += _findings("servers", await store.replication())
            if isinstance(store, Networked):
                found += _findings("access", await store.access())
            if (why := await store.fenced()) is not None:
                found.append(_of_store(why))
            await must_be_servable(store, settings.ring)
            await open_owners(store=store, ring=settings.ring)
            found.append(ok("secrets", "they match the store"))
            await store.check()
            found.append(ok("writes", "the store accepts them, and has free space"))
            if settings.store.startswith(SQLITE):
                file = Path(settings.store.removeprefix(SQLITE))
                await asyncio.to_thread(_check_integrity, file)
                found.append(ok("indexes", "they match their records"))
            found += await _stored_state(settings, store, outbound=outbound, clock=clock)
    except Unreadable:
        found.append(wrong("secrets", str(under_another_secret(settings))))
    except StoreUnavailable as error:
        found.append(_of_store(error.why))
    except CommandRefused as refusal:
        found.append(_of_store(str(refusal)))
    except sqlite3.Error as error:
        found.append(_of_store(f"The store cannot be read: {error}"))
    return found


def _findings(subject: str, states: Sequence[tuple[str, str | None]]) -> Sequence[Finding]:
    return [note(subject, says, fix=fix) if fix else ok(subject, says) for says, fix in states]


async def _store_clock(store: Store, clock: Clock) -> Sequence[Finding]:
    if not isinstance(store, Clocked):
        return []
    ahead = await seconds_ahead(store, clock)
    if abs(ahead) < CLOCK_SECONDS_AT_MOST:
        return [ok("clock", "it matches the store's")]
    says = (
        f"the store's is {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} this machine's"
    )
    fix = "synchronise both clocks by NTP (timedatectl set-ntp true): "
    return [note("clock", says, fix=f"{fix}a server does not start if they differ by 5 s")]


async def _stored_state(
    settings: Settings, store: Store, *, outbound: Outbound, clock: Clock
) -> Sequence[Finding]:
    """Check the last backup's age, payments that need an operator, and clients that misbehaved."""
    found = [_backup(await last_backup(store), clock())] if store.address is not None else []
    async with open_service(
        settings, ServiceOptions(clock=clock, outbound=outbound), store=store
    ) as service:
        unresolved = len(await service.kinds.payments.unresolved.list_to_check())
        if unresolved:
            says = f"{unresolved} to check at the provider"
            fix = (
                "list them: elicit payments list --open; after each check: elicit payments done ID"
            )
            found.append(note("payments", says, fix=fix))
        else:
            found.append(ok("payments", "none that an operator has to check"))
        clients = await service.clients.all()
        if clients:
            number = counted(len(clients), "client")
            says = f"{number} handled links or forms differently than declared: "
            says += ", ".join(sorted({f"{one.name} {one.release}" for one in clients})[:5])
            fix = "see what they did: elicit clients list; to override it: ELICIT_CLIENTS"
            found.append(note("clients", says, fix=fix))
        found += await examine_registrations(service)
        found += await examine_events(service)
        found += await examine_notifications(service)
        found += await _step_back(service.elicitations.high_water, clock())
    return found


async def examine_registrations(service: Service) -> Sequence[Finding]:
    """Return the findings about our client ids, secrets and addresses that providers refused."""
    found = list[Finding]()
    for refused in await service.kinds.accounts.refused_registrations():
        name, label = refused.provider.upper(), service.kinds.accounts.label_of(refused.provider)
        error = f" ({refused.error})" if refused.error else ""
        what = {"redirect": "redirect address", "refresh": "requests to refresh accounts"}
        fix = f"correct ELICIT_{name}_CLIENT_ID and ELICIT_{name}_CLIENT_SECRET"
        if refused.error in PROOF_ERRORS:
            fix = f"write dpop = true in [providers.{refused.provider}] of elicit.toml"
        if refused.fault == "redirect":
            fix = f"register {service.public_url}/callback/{refused.provider} at {label}"
        elif refused.fault == "refresh":
            fix = f"allow the grant type refresh_token for this client at {label}"
        says = (
            f"{label} refused this server's {what.get(refused.fault, 'client id or secret')}{error}"
            f" {counted(refused.count, 'time')}, last at {refused.last_at:%Y-%m-%d %H:%M} UTC"
        )
        found.append(wrong("accounts", says, fix=fix))
    return found or [ok("accounts", "no provider has refused this server")]


async def _step_back(high_water: HighWater, now: datetime) -> Sequence[Finding]:
    """Check whether the store has lost writes that were acknowledged before."""
    if (why := await high_water.why_older()) is not None:
        says = f"the store is older than before: {why}"
        return [wrong("step back", says, fix="start a server, then follow docs/how-to/stores.md")]
    back = await high_water.step_back()
    if back is None or now - back.noticed_at > STEP_BACK_REPORTED_FOR:
        return [ok("step back", "no loss of data was noticed")]
    survived = f"{back.survived:%Y-%m-%d %H:%M:%S} UTC"
    says = (
        f"at {back.noticed_at:%Y-%m-%d %H:%M} UTC, the store had lost everything after {survived}"
    )
    if back.was_restored:
        says = f"a backup was restored that may lack everything after {survived}"
    return [
        note(
            "step back", f"{says} ({back.why})", fix="follow the checklist in docs/how-to/stores.md"
        )
    ]


async def examine_events(service: Service) -> Sequence[Finding]:
    """Check each event address for events that it has not received."""
    events, found = service.events, list[Finding]()
    if events.addresses:
        await events.backlog.read_through()
    for name, state in (await events.states()).items():
        waiting = events.backlog.counts().get(name, 0)
        if state.ended_at is not None:
            says = (
                f"{name} answered 410 (gone) at {state.ended_at:%Y-%m-%d %H:%M} UTC, so it "
                "receives no events"
            )
            fix = f"run elicit events resume {name}, or unset ELICIT_EVENTS_{name.upper()}_URL"
            found.append(wrong("events", says, fix=fix))
        elif state.not_kept:
            lost = counted(state.not_kept, "event")
            says = f"{name} will not receive {lost}, because too many were waiting"
            fix = (
                f"run elicit events test {name}, then elicit events resume {name} to dismiss this "
                "note"
            )
            found.append(wrong("events", says, fix=fix))
        elif waiting:
            fix = f"see why: elicit events list; to try it: elicit events test {name}"
            found.append(note("events", f"events that wait for {name}: {waiting}", fix=fix))
        else:
            found.append(ok("events", f"{name} has received all events"))
    return found


async def examine_notifications(service: Service) -> Sequence[Finding]:
    """Check each table `[notify.NAME]` for messages that could not be sent yet."""
    waiting = await service.elicitations.all(Notification, status="waiting", skips_unreadable=True)
    found = list[Finding]()
    for name in service.notifier.tables:
        failed = [row for row in waiting if row.table == name and row.why is not None]
        if failed:
            whys = ", ".join(sorted({row.why or "" for row in failed}))
            says = f"{counted(len(failed), 'message')} to {name} could not be sent yet ({whys})"
            fix = f"correct [notify.{name}] in elicit.toml, then try it: elicit notify test {name}"
            found.append(note("notify", says, fix=fix))
        else:
            says = f"{name}: no message waits for a retry; to try it: elicit notify test {name}"
            found.append(ok("notify", says))
    return found


def _backup(made_at: datetime | None, now: datetime) -> Finding:
    if made_at is None:
        return note("backup", "none was made", fix="run elicit backup FILE now and every night")
    age = now - made_at
    says = f"the last was made {made_at:%Y-%m-%d %H:%M} UTC, {counted(age.days, 'day')} ago"
    if age > BACKUP_AGE_AT_MOST:
        return note("backup", says, fix="run elicit backup FILE now and every night")
    return ok("backup", says)


def _of_store(sentence: str) -> Finding:
    return wrong("store", sentence)


def _check_integrity(path: Path) -> None:
    """Check the integrity of the database file. Raises CommandRefused, or sqlite3.Error."""
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as connection:
        (found,) = connection.execute("PRAGMA integrity_check(1)").fetchone()
    if found != "ok":
        raise CommandRefused(
            f"{path} is damaged ({' '.join(str(found).split())}): restore a backup."
        )
