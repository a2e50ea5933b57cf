"""Two workers of one server, and an attacker who pretends to be the owner at the other worker."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from msgspec.msgpack import decode, encode

from flows import elicit
from tests.support.guarded_server import guarded_by_tokens
from tests.support.mcp_server import RING, eventually, new_server
from tests.support.users import AS_ROOT, ME, NOBODY, calling
from tests.support.workers import Workers, in_file, two_workers
from webapp.http.exchange import PEER_KEY
from webapp.identity.local_peer import Peer, PeerConnection
from webapp.workers.envelope import CHALLENGE_BYTES, Envelope, Sealing
from webapp.workers.relay import make_private

TIMES = 20
LISTING = {"id": 5, "method": "tools/list"}
LENGTH_BYTES = 4
GUARDED = {
    "anns": {"iss": "https://login.example.com", "sub": "ann"},
    "bobs": {"iss": "https://login.example.com", "sub": "bob"},
}


def shop(server: Any) -> list[str]:
    ran: list[str] = []

    @server.tool(annotations=types.ToolAnnotations(destructive_hint=True))
    async def wipe() -> str:
        ran.append("wiped")
        return "wiped"

    @server.tool()
    async def keep(what: str) -> str:
        return str(await elicit.secret(f"The key of {what}"))

    return ran


@pytest.fixture
def store(tmp_path: Path) -> str:
    return in_file(tmp_path)


@pytest.fixture
def ran() -> list[list[str]]:
    return []


@pytest.fixture
def make(library: str, ran: list[list[str]]) -> Any:
    def made() -> Any:
        server = new_server(library)
        ran.append(shop(server))
        return server

    return made


@AS_ROOT
async def test_another_machine_user_is_refused_through_either_worker(make, store, ran):
    async with two_workers(make, store=store) as workers, workers.session(0) as headers:
        for at in (0, 1) * (TIMES // 2):
            for options in (
                {"message": LISTING},
                {"message": calling("wipe", id=9)},
                {"message": {"id": 1, "result": {"action": "accept", "content": {}}}},
                {"method": "GET"},
                {"method": "DELETE"},
            ):
                refused = await workers.answered(at, uid=NOBODY, headers=headers, **options)
                assert refused.status == 404, (at, options)
        assert ran == [[], []]


@AS_ROOT
async def test_remote_user_is_not_local_at_the_other_worker(make, store):
    async with (
        two_workers(make, store=store) as workers,
        workers.session(0, uid=NOBODY) as headers,
    ):
        for number in range(TIMES):
            asked = calling("keep", id=10 + number, what=str(number))
            answer = await workers.answered(1, uid=NOBODY, headers=headers, message=asked)
            assert "Another user of this machine opened the connection." in answer.body


async def test_owner_is_local_through_either_worker(make, store):
    async with two_workers(make, store=store) as workers, workers.session(0) as headers:
        for number, at in enumerate((0, 1) * (TIMES // 2)):
            asked = calling("keep", id=10 + number, what=str(number))
            talk = await workers.sent(at, headers=headers, message=asked)
            assert f"{workers.envs[0].url}/e/" in await talk.until("/e/")
            talk.close()


async def test_relayed_request_is_refused_at_both_workers(make, store):
    relays = ({"via": "1.1 relay"}, {"forwarded": "for=127.0.0.1"}, {"x-real-ip": "127.0.0.1"})
    async with two_workers(make, store=store) as workers, workers.session(0) as headers:
        for at in (0, 1):
            for relay in relays:
                refused = await workers.answered(at, headers={**headers, **relay}, message=LISTING)
                assert refused.status == 404


async def test_access_token_works_only_for_its_person_through_either_worker(library, store):
    def guarded() -> Any:
        server = guarded_by_tokens(library, GUARDED)
        shop(server)
        return server

    anns = {"authorization": "Bearer anns"}
    async with (
        two_workers(guarded, store=store) as workers,
        workers.session(0, headers=anns) as headers,
    ):
        nobodys = {name: text for name, text in headers.items() if name != "authorization"}
        bobs = {**headers, "authorization": "Bearer bobs"}
        for at in (0, 1):
            listed = await workers.answered(at, headers=headers, message=LISTING)
            assert listed.status == 200
            for method in ("POST", "GET", "DELETE"):
                result = await workers.answered(at, headers=bobs, method=method)
                assert result.status == 404, method
                unknown = await workers.answered(at, headers=nobodys, method=method)
                assert unknown.status == 401, method


class Socket:
    """A worker's socket, as another program of the same user reaches it."""

    def __init__(self, workers: Workers, at: int) -> None:
        edge: Any = workers.envs[at]._posts._app
        layer: Any = edge._routes["mcp"]
        self.name: str = layer._relay._name
        self.path: Path = layer._relay._folder / self.name

    async def exchanged(self, *frames: bytes) -> tuple[bytes, bytes]:
        """Return the challenge, and the response to these frames."""
        reader, writer = await asyncio.open_unix_connection(self.path)
        challenge = await reader.readexactly(CHALLENGE_BYTES)
        for frame in frames:
            writer.write(frame)
        writer.write_eof()
        try:
            return challenge, await reader.read()
        except ConnectionResetError:  # the worker did not read the frames
            return challenge, b""
        finally:
            writer.close()


def framed(piece: bytes) -> bytes:
    return len(piece).to_bytes(LENGTH_BYTES, "big") + piece


def envelope_of(workers: Workers, headers: dict[str, str], *, method: str = "DELETE") -> Envelope:
    """Return the envelope that the second worker would create for this request of the owner."""
    own = {
        "host": workers.envs[0].url.removeprefix("http://"),
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        **headers,
    }
    ends = PeerConnection(client=("127.0.0.1", 40000), server=("127.0.0.1", 40001))
    return Envelope.of(
        {
            "method": method,
            "scheme": "http",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "query_string": b"",
            "http_version": "1.1",
            "headers": [(name.encode(), text.encode()) for name, text in own.items()],
            "client": ends.client,
            "server": ends.server,
            PEER_KEY: Peer(uid=ME, connection=ends),
        }
    )


async def test_socket_connection_without_valid_envelope_gets_nothing(make, store, ran, caplog):
    caplog.set_level(logging.WARNING)
    async with two_workers(make, store=store) as workers, workers.session(0) as headers:
        socket, other = Socket(workers, 0), Socket(workers, 1)
        envelope = envelope_of(workers, headers)
        old, _ = await socket.exchanged()
        sealed = envelope.seal(RING, to=socket.name, challenge=old)
        broken = bytes([sealed[0], *sealed[1:-1], sealed[-1] ^ 1])
        http = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
        tries = {
            "plain HTTP": http,
            "empty frame": framed(b""),
            "rubbish": framed(b"x" * 300),
            "frame with a length that is too large": (2**31).to_bytes(LENGTH_BYTES, "big"),
            "envelope of another connection": framed(sealed),
            "envelope with a changed byte": framed(broken),
            "challenge sent back": framed(old),
        }
        for name, frame in tries.items():
            for _ in range(TIMES):
                _, answer = await socket.exchanged(frame)
                assert answer == b"", name
        for _ in range(TIMES):  # valid only at the other worker
            reader, writer = await asyncio.open_unix_connection(socket.path)
            challenge = await reader.readexactly(CHALLENGE_BYTES)
            writer.write(framed(envelope.seal(RING, to=other.name, challenge=challenge)))
            assert await reader.read() == b""
            writer.close()
        refusals = [each for each in caplog.records if each.message == "relay.refused"]
        assert len(refusals) >= (len(tries) + 1) * TIMES - TIMES  # an empty frame is not logged
        assert ran == [[], []]
        assert (await workers.answered(0, headers=headers, message=LISTING)).status == 200


async def test_frames_after_envelope_are_accepted_only_in_order(make, store):
    async with two_workers(make, store=store) as workers, workers.session(0) as headers:
        socket = Socket(workers, 0)
        ping = encode((2, b'{"jsonrpc": "2.0", "id": 6, "method": "ping"}', False))
        for is_complete in (True, *[False] * TIMES):
            reader, writer = await asyncio.open_unix_connection(socket.path)
            challenge = await reader.readexactly(CHALLENGE_BYTES)
            envelope = envelope_of(workers, headers, method="POST")
            writer.write(framed(envelope.seal(RING, to=socket.name, challenge=challenge)))
            sealing = Sealing(envelope.key)
            if not is_complete:
                sealing.seal(b"left out", is_answer=False)
            writer.write(framed(sealing.seal(ping, is_answer=False)))
            if is_complete:
                size = int.from_bytes(await reader.readexactly(LENGTH_BYTES))
                start = decode(sealing.open(await reader.readexactly(size), is_answer=True))
                assert start[:2] == [1, 200]
            else:
                assert await reader.read(1) == b""
            writer.close()
        await eventually(lambda: not workers.envs[0]._posts.running)
        assert (await workers.answered(0, headers=headers, message=LISTING)).status == 200


def test_socket_folder_must_be_private_to_this_user(tmp_path):
    for name, spoil in (
        ("open", lambda folder: folder.chmod(0o755)),
        ("writable", lambda folder: folder.chmod(0o770)),
    ):
        folder = tmp_path / name
        folder.mkdir(mode=0o700)
        make_private(folder)
        spoil(folder)
        with pytest.raises(PermissionError, match="is open to other users"):
            make_private(folder)
    aside = tmp_path / "aside"
    aside.symlink_to(tmp_path / "open")
    with pytest.raises(PermissionError):
        make_private(aside)
