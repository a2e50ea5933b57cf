"""Hosts in the operator's private network: only the hosts that the operator lists are reached."""

from collections.abc import Sequence
from pathlib import Path

import httpx
import pytest
from pytest_httpx import HTTPXMock

from flows.elicitation.flow import Talk
from flows.errors import Failed
from flows.providers import openid
from webapp.http.address import read_trusted_host
from webapp.http.client import Outbound
from webapp.oauth.clients import Clients
from webapp.settings.settings import BadSettings, read_settings

INNER = {
    "login.internal": ["10.1.2.3"],
    "evil.internal": ["10.1.2.3"],
    "a.login.internal": ["10.1.2.3"],
    "both.example": ["10.1.2.3", "93.184.215.14"],
}


async def resolve(host: str, port: int) -> Sequence[str]:
    return INNER.get(host, [host.strip("[]")])


async def asked(url: str, *trusted: str, is_authors: bool = False) -> int:
    async with httpx.AsyncClient() as client:
        outbound = Outbound(
            client,
            allow_loopback=False,
            resolve=resolve,
            trusted=[read_trusted_host(one) for one in trusted],
        )
        reply = await outbound.send(httpx.Request("GET", url), is_authors=is_authors)
    return reply.status_code


@pytest.mark.parametrize(
    ("url", "trusted"),
    [
        ("https://login.internal/x", "login.internal"),
        ("https://LOGIN.internal:8443/x", "Login.Internal:8443"),
        ("https://login.internal:8443/x", "10.1.0.0/16:8443"),
        ("https://10.1.2.3/x", "10.1.2.3"),
        ("https://127.0.0.1:8443/x", "127.0.0.1:8443"),
        ("https://[fd00::7]:8443/x", "[fd00::/8]:8443"),
        ("https://[fd00::7]/x", "fd00::7"),
    ],
)
async def test_host_trusted_by_operator_is_reached(
    httpx_mock: HTTPXMock, url: str, trusted: str
) -> None:
    # finding: I1
    httpx_mock.add_response()
    assert await asked(url, "other.internal", trusted) == 200


@pytest.mark.parametrize(
    ("url", "trusted"),
    [
        ("https://login.internal/x", "login.internal:8443"),
        ("https://login.internal:8443/x", "login.internal"),
        ("https://evil.internal/x", "login.internal"),
        ("https://a.login.internal/x", "login.internal"),
        ("https://10.1.2.3/x", "login.internal"),
        ("https://10.2.2.3/x", "10.1.0.0/16"),
        ("http://login.internal:443/x", "login.internal"),
        # both.example has a trusted and another address. Its owner decides which one is used.
        ("https://both.example/x", "10.1.0.0/16"),
        ("https://169.254.169.254/x", "10.0.0.0/8"),
    ],
)
async def test_host_port_or_address_outside_trusted_hosts_is_refused(
    url: str, trusted: str
) -> None:
    # finding: I1
    with pytest.raises(Failed, match="ELICIT_TRUSTED_HOSTS"):
        await asked(url, trusted)


async def test_address_declared_by_author_code_cannot_use_trusted_hosts() -> None:
    # finding: I1
    for url in ("https://login.internal/x", "https://10.1.2.3/x", "https://127.0.0.1/x"):
        with pytest.raises(Failed):
            await asked(url, "login.internal", "10.1.2.3", "127.0.0.1", is_authors=True)


async def test_provider_declared_in_author_code_cannot_use_trusted_hosts(
    httpx_mock: HTTPXMock,
) -> None:
    # finding: I1
    httpx_mock.add_response()
    configured, of_author = (openid(name, "https://login.internal") for name in ("ours", "theirs"))
    credentials = dict.fromkeys(("ours", "theirs"), ("id", "secret"))
    known = Clients(providers={"ours": configured}, credentials=credentials, config="elicit.toml")

    def talk() -> Talk[int]:
        return (yield httpx.Request("GET", "https://login.internal/x")).status_code

    async with httpx.AsyncClient() as client:
        trusted = [read_trusted_host("login.internal")]
        outbound = Outbound(client, allow_loopback=True, resolve=resolve, trusted=trusted)
        assert await outbound.run(talk(), to=known.of("ours")) == 200
        with pytest.raises(Failed, match="ELICIT_TRUSTED_HOSTS"):
            await outbound.run(talk(), to=known.of(of_author))


def test_trusted_hosts_are_read_from_variable_and_invalid_entry_is_named(tmp_path: Path) -> None:
    # finding: I1
    home = {"HOME": str(tmp_path)}
    given = "login.internal:8443, 10.1.0.0/16 [fd00::/8]:443"
    found = read_settings({**home, "ELICIT_TRUSTED_HOSTS": given}).trusted_hosts
    assert [(one.name, str(one.network), one.port) for one in found] == [
        ("login.internal", "None", 8443),
        (None, "10.1.0.0/16", 443),
        (None, "fd00::/8", 443),
    ]
    for wrong in ("https://login.internal", "10.1.2.3/16", "a:b", "host:0", "host:99999", "a b:c"):
        with pytest.raises(BadSettings, match="ELICIT_TRUSTED_HOSTS"):
            read_settings({**home, "ELICIT_TRUSTED_HOSTS": wrong})
