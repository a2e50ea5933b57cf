"""The checks of `elicit doctor` beyond this machine: our address, the clock, our registrations.

Risks: the server looks healthy to itself, but clients cannot reach it, because its host name
belongs to another machine, a proxy changes requests, or a provider sends people and webhooks to
another address. The doctor therefore calls the server at its public address, and queries the
providers.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Literal
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Struct

from flows.elicitation.flow import SetupFinding, SetupReport
from flows.errors import Failed
from flows.oauth.provider import Provider
from flows.oauth.registered_client import RegisteredClient
from flows.oauth.registration import examined
from flows.payments.registry import Gateways
from flows.shown import counted
from webapp.connecting import clock_finding, registrations_of
from webapp.events.addresses import EventAddress
from webapp.http.browser import page_headers
from webapp.http.client import Outbound
from webapp.settings.settings import Settings

CERTIFICATE_DAYS_AT_LEAST = 14
_HTTPS = 443
# A function that returns the expiry of the certificate at a host and port.
Certificate = Callable[[str, int], Awaitable[datetime]]


class Finding(Struct, frozen=True, kw_only=True):
    """The result of one check. `standing` is `ok`, `note` (may be fine) or `wrong`.

    `fix` says what to do, with the setting and its value.
    """

    subject: str
    standing: str
    says: str
    fix: str | None = None


def ok(subject: str, says: str) -> Finding:
    return Finding(subject=subject, standing="ok", says=says)


def note(subject: str, says: str, *, fix: str) -> Finding:
    return Finding(subject=subject, standing="note", says=says, fix=fix)


def wrong(subject: str, says: str, *, fix: str | None = None) -> Finding:
    """Return a `wrong` finding. Without `fix`, the text of `says` contains the fix."""
    return Finding(subject=subject, standing="wrong", says=says, fix=fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The network, the clock and the certificate check, which tests replace."""

    outbound: Outbound
    now: Callable[[], datetime]
    certificate: Certificate


async def examine_outside(settings: Settings, around: Surroundings) -> list[Finding]:
    """Run all checks, and return the findings in the order in which they are shown."""
    parts = await asyncio.gather(
        _address(settings, around),
        *(_payments(settings, name, around) for name in sorted(settings.sellers)),
        _accounts(settings, around),
        *(_event_address(address, around) for address in settings.events),
    )
    return [finding for part in parts for finding in part]


async def certificate_end(host: str, port: int) -> datetime:
    """Return when the host's certificate expires. Raises OSError, including ssl.SSLError."""
    async with asyncio.timeout(10):
        _, writer = await asyncio.open_connection(host, port, ssl=ssl.create_default_context())
    certificate = writer.get_extra_info("peercert")
    writer.close()
    return datetime.fromtimestamp(ssl.cert_time_to_seconds(certificate["notAfter"]), UTC)


async def _address(settings: Settings, around: Surroundings) -> list[Finding]:
    """Check that a request to the public address comes back to this server."""
    if settings.is_local:
        return [ok("address", f"{settings.url} can be reached only from this machine")]
    found = [await _alive(settings, around.outbound)]
    if not settings.identity.can_ask_people:
        fix = (
            "set ELICIT_ISSUER to the address where people sign in, or ELICIT_BIND=code, "
            "ELICIT_ANONYMOUS=code"
        )
        says = (
            "nobody can open this server's links: confirm returns False, and all other questions "
            "are refused"
        )
        found.append(note("people", says, fix=fix))
    if settings.url.startswith("https:"):
        found.append(await _encrypted(settings, around))
    if not settings.proxies:
        fix = (
            "if the server is behind a proxy, set ELICIT_PROXIES to its address, for example "
            "10.0.0.5"
        )
        found.append(note("proxy", "forwarded headers are ignored", fix=fix))
    return found


async def _alive(settings: Settings, outbound: Outbound) -> Finding:
    url = f"{settings.url}/live"
    try:
        reply = await outbound.send(httpx.Request("GET", url))
    except (httpx.HTTPError, Failed) as error:
        return wrong(
            "address",
            f"{url} cannot be reached from here ({_words(error)})",
            fix="start the server, and point the DNS name and the proxy to it; or set ELICIT_URL "
            "to the address that people open. If this machine cannot reach its own public "
            "address, run this on another one",
        )
    return _how_alive(reply, settings)


def _how_alive(reply: httpx.Response, settings: Settings) -> Finding:
    url = f"{settings.url}/live"
    status = reply.status_code
    if status == HTTPStatus.MISDIRECTED_REQUEST:
        return wrong(
            "address",
            f"a proxy changes the Host header of {url}",
            fix="let the proxy forward it (nginx: proxy_set_header Host $http_host), or set "
            "ELICIT_URL to the address that people open",
        )
    if reply.is_redirect:
        to = reply.headers.get("location", "elsewhere")
        return wrong(
            "address",
            f"{url} redirects to {to}",
            fix="set ELICIT_URL to the final address, and register that at providers",
        )
    if status in (HTTPStatus.BAD_GATEWAY, HTTPStatus.GATEWAY_TIMEOUT):
        return wrong(
            "address",
            f"a proxy answers at {url}, but cannot reach the server (HTTP {status})",
            fix="start the server with the --host and --port that the proxy connects to",
        )
    if status != HTTPStatus.OK or not _is_alive(reply):
        return wrong(
            "address",
            f"another program answers at {url} (HTTP {status})",
            fix="set ELICIT_URL to the address of this server, with its path behind the proxy (and "
            "ELICIT_ROOT_PATH, if the proxy strips the path)",
        )
    changed = [name for name, value in page_headers().items() if reply.headers.get(name) != value]
    if changed:
        return note(
            "address",
            f"{url} answers, but a proxy removes or changes {', '.join(changed)}",
            fix="let the proxy pass response headers unchanged",
        )
    return ok("address", f"{settings.url} leads here")


class _Alive(Struct, frozen=True, kw_only=True):
    status: Literal["ok"]


def _is_alive(reply: httpx.Response) -> bool:
    try:
        msgspec.json.decode(reply.content, type=_Alive)
    except msgspec.MsgspecError:
        return False
    return True


async def _encrypted(settings: Settings, around: Surroundings) -> Finding:
    parts = urlsplit(settings.url)
    host = parts.hostname or ""
    try:
        end = await around.certificate(host, parts.port or _HTTPS)
    except ssl.SSLCertVerificationError as error:
        return wrong(
            "certificate",
            f"browsers do not trust {host}'s certificate: {error.verify_message}",
            fix=f"give the proxy a certificate for {host} with its full chain",
        )
    except (OSError, ValueError, TimeoutError) as error:
        says = f"{host}'s certificate cannot be checked ({_words(error)})"
        return note("certificate", says, fix="check it from another machine")
    days = (end - around.now()).days
    if days < CERTIFICATE_DAYS_AT_LEAST:
        ends = f"ends in {counted(days, 'day')}" if days >= 0 else "has ended"
        return wrong(
            "certificate",
            f"{host}'s certificate {ends}",
            fix="renew it, and check why the automatic renewal does not run",
        )
    return ok("certificate", f"{host}'s certificate is valid for {counted(days, 'day')}")


async def _payments(settings: Settings, name: str, around: Surroundings) -> list[Finding]:
    """Check our registration at one payment provider, and compare the clocks."""
    seller = settings.sellers[name]
    url = None if name in settings.unreached else f"{settings.url}/webhooks/{name}"
    gateway = Gateways({name: seller}).examinable.get(name)
    if gateway is None:
        where = (
            "cannot reach this server, so the server polls it" if url is None else f"go to {url}"
        )
        return [ok(name, f"webhooks of {seller.label} {where}; its settings cannot be checked")]
    asked_at = around.now()
    try:
        report = await around.outbound.run(gateway.examine(url))
    except Failed as error:
        fix = "allow outgoing https from this machine to it, and check its status page"
        return [note(name, f"{seller.label} could not be reached ({error})", fix=fix)]
    found = [_finding(name, each) for each in report.findings]
    return [*found, *_clock(report, seller.label, (asked_at, around.now()))]


def _clock(
    report: SetupReport, label: str, between: tuple[datetime, datetime]
) -> Sequence[Finding]:
    found = clock_finding(report.reported_at, label, between=between)
    return [] if found is None else [_finding("clock", found)]


async def _event_address(address: EventAddress, around: Surroundings) -> list[Finding]:
    """Check that the address is reachable. The request has no event, so any response is fine."""
    setting = f"ELICIT_EVENTS_{address.name.upper()}_URL"
    try:
        await around.outbound.send(httpx.Request("HEAD", address.url), bytes_at_most=0)
    except (httpx.HTTPError, Failed) as error:
        fix = f"set {setting} to an address that this machine can reach by https; if it is in your "
        fix += "own network, set ELICIT_TRUSTED_HOSTS to its host"
        says = f"{address.name} cannot be reached from here ({_words(error).rstrip('.')})"
        return [wrong("events", says, fix=fix)]
    says = (
        f"{address.name} can be reached; to send it a test event: elicit events test {address.name}"
    )
    return [ok("events", says)]


async def _accounts(settings: Settings, around: Surroundings) -> list[Finding]:
    """Check the issuer where people sign in, and the providers where we are registered."""
    parts = await asyncio.gather(
        *(_registration(one, around) for one in registrations_of(settings))
    )
    return [finding for part in parts for finding in part]


async def _registration(one: RegisteredClient, around: Surroundings) -> list[Finding]:
    provider = one.client.provider
    asked_at = around.now()
    report = await around.outbound.run(examined(one, now=asked_at))
    found = [_finding(provider.name, each) for each in report.findings]
    found += _clock(report, provider.label, (asked_at, around.now()))
    return [*found, *_unproven(provider)]


def _finding(subject: str, found: SetupFinding) -> Finding:
    says = found.says.rstrip(".")
    if found.fix is None:
        return ok(subject, says)
    return (wrong if found.is_wrong else note)(subject, says, fix=found.fix)


def _unproven(provider: Provider) -> Iterator[Finding]:
    """Yield a note for each check (PKCE, nonce) that the provider's declaration turns off."""
    if not provider.pkce:
        says = (
            f"{provider.label} is declared with pkce = false: a stolen code can be redeemed with "
        )
        says += "the client secret alone"
        yield note(provider.name, says, fix="turn PKCE on as soon as the provider accepts it")
    if not provider.nonce:
        says = f"{provider.label} is declared with nonce = false: only its userinfo endpoint says "
        says += "whose account it is, without a signature"
        yield note(provider.name, says, fix="turn it on as soon as id_tokens have a nonce")


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
