"""The checks of `elicit doctor` beyond this machine: our address, the clock, our registrations.

Risks: a server that looks healthy to itself but that no client reaches. Its host name belongs to
another machine, a proxy changes requests, or a provider sends people and webhooks to another
address. The doctor therefore calls the server by its public address, and queries the providers.
"""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Literal
from urllib.parse import urlsplit

import httpx
import msgspec
from msgspec import Struct

from flows.errors import Failed
from flows.oauth.discovery import Metadata, discover
from flows.oauth.provider import Client, Provider
from flows.oauth.sign_in import SignIn
from flows.payments.registry import Gateways
from flows.providers.catalogue import CATALOGUE
from webapp.events.addresses import EventAddress
from webapp.http.browser import page_headers
from webapp.http.client import Outbound
from webapp.identity.sign_in import CALLBACK_PATH
from webapp.settings.settings import Settings

CERTIFICATE_DAYS_AT_LEAST = 14
CLOCKS_APART_AT_MOST = timedelta(seconds=30)
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
    if not settings.identity.knows_people:
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
    if status != HTTPStatus.OK or not _is_ours(reply):
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


def _is_ours(reply: httpx.Response) -> bool:
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
        says = f"{host}'s certificate ends in {days} days" if days >= 0 else f"{host}'s has ended"
        return wrong(
            "certificate", says, fix="renew it, and check why the automatic renewal does not run"
        )
    return ok("certificate", f"{host}'s certificate is valid for {days} days")


async def _payments(settings: Settings, name: str, around: Surroundings) -> list[Finding]:
    """Check our registration at one payment provider, and compare the clocks."""
    seller = settings.sellers[name]
    url = None if name in settings.unreached else f"{settings.url}/webhooks/{name}"
    gateway = Gateways({name: seller}).examinable.get(name)
    if gateway is None:
        where = (
            "cannot reach this server, so the server polls it" if url is None else f"go to {url}"
        )
        return [ok(name, f"webhooks of {seller.label} {where}; the server cannot poll for more")]
    try:
        report = await around.outbound.run(gateway.examine(url))
    except Failed as error:
        fix = "allow outgoing https from this machine to it, and check its status page"
        return [note(name, f"{seller.label} could not be reached ({error})", fix=fix)]
    found = [
        ok(name, each.says.rstrip("."))
        if each.fix is None
        else (wrong if each.is_wrong else note)(name, each.says.rstrip("."), fix=each.fix)
        for each in report.findings
    ]
    if report.told_at is not None:
        found += _clock(report.told_at, seller.label, around.now())
    return found


def _clock(reported_at: str, label: str, now: datetime) -> Sequence[Finding]:
    with suppress(ValueError):
        apart = now - parsedate_to_datetime(reported_at)
        if abs(apart) > CLOCKS_APART_AT_MOST:
            is_ahead = apart > timedelta()
            says = f"{abs(apart).total_seconds():.0f} s {'ahead of' if is_ahead else 'behind'}"
            fix = "set this machine's clock by NTP (timedatectl set-ntp true)"
            return [wrong("clock", f"it is {says} {label}'s", fix=fix)]
        return [ok("clock", f"it matches {label}'s")]
    return []


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
    found = list[Finding]()
    client = settings.identity.client
    if client is not None:
        url = f"{settings.url}{CALLBACK_PATH}"
        found.append(await _issuer("ELICIT_ISSUER", client, url, around))
    for name in sorted(settings.credentials):
        provider = settings.providers.get(name) or CATALOGUE.get(name)
        if provider is not None:
            url = f"{settings.url}/callback/{name}"
            setting = f"ELICIT_{name.upper()}_CLIENT_ID"
            id, secret = settings.credentials[name]
            client = Client(provider=provider, client_id=id, client_secret=secret)
            found.append(await _issuer(setting, client, url, around))
            found += _unproven(provider)
    return found


def _unproven(provider: Provider) -> Iterator[Finding]:
    """Yield a note for each proof that the provider's declaration turns off."""
    if not provider.pkce:
        says = (
            f"{provider.label} is declared with pkce = false: a stolen code can be redeemed with "
        )
        says += "the client secret alone"
        yield note(provider.name, says, fix="turn PKCE on as soon as the provider accepts it")
    if not provider.nonce:
        says = f"{provider.label} is declared with nonce = false: its userinfo endpoint says whose "
        says += "account it is, and no signature does"
        yield note(provider.name, says, fix="turn it on as soon as id_tokens have a nonce")


async def _issuer(setting: str, client: Client, redirect: str, around: Surroundings) -> Finding:
    provider = client.provider
    register = f"its redirect URI there has to be {redirect}"
    if not provider.discovers or provider.tenants:
        return ok(provider.name, f"{provider.label}: {register}")
    try:
        metadata = await around.outbound.run(discover(provider))
    except Failed as error:
        return wrong(
            provider.name,
            f"{provider.issuer} cannot be used ({error})",
            fix=f"{setting} must equal the issuer in its /.well-known/openid-configuration; if it "
            "is in your own network, set ELICIT_TRUSTED_HOSTS to its host",
        )
    match await _takes_back(client, metadata, redirect, around.outbound):
        case True:
            return ok(provider.name, f"{provider.label} redirects people to {redirect}")
        case False:
            id = setting if setting.endswith("_CLIENT_ID") else f"{setting}_CLIENT_ID"
            return wrong(
                provider.name,
                f"{provider.label} refuses to redirect people to {redirect}",
                fix=f"register exactly this redirect URI for the client {client.client_id} there; "
                f"or set {id} to the client that has it",
            )
        case None:
            return ok(provider.name, f"{provider.label} describes how to connect; {register}")


async def _takes_back(
    client: Client, metadata: Metadata, redirect: str, outbound: Outbound
) -> bool | None:
    """Return whether the issuer redirects browsers to our address, or None if unknown.

    The request has `prompt=none` and no session. For a registered address, the issuer then
    redirects with `login_required` (OpenID Connect Core, 3.1.2.6). For another address, the issuer
    must not redirect (RFC 6749, 4.1.2.1), and most issuers answer 400.
    """
    away = SignIn(client=client, redirect_uri=redirect).begin(metadata).url
    asked = httpx.URL(away).copy_set_param("prompt", "none")
    try:
        reply = await outbound.send(httpx.Request("GET", asked))
    except (httpx.HTTPError, Failed):
        return None
    if reply.is_redirect and reply.headers.get("location", "").partition("?")[0] == redirect:
        return True
    return False if reply.status_code == HTTPStatus.BAD_REQUEST else None


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
