"""Requests that httptools reads, with the bounds that uvicorn's protocol for it lacks.

What could go wrong: uvicorn bounds the head of a request only where h11 reads it; here a head that
never ends would be kept until its time is over. And what stands behind a chunked body (RFC 9112,
7.1.2) would be appended to the head of a request that is being answered already. And a request for
another host's address (RFC 9112, 3.2.2) would be answered as one for ours.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_AT_MOST = 64 * 1024  # with the cookies that every program of 127.0.0.1 leaves there


class FastProtocol(HttpToolsProtocol):
    """What httptools raises when a callback here does becomes 400."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # Of a head: what arrived after its first bytes (None outside of one), and what was read.
        self._head_bytes: int | None = None
        self._read_bytes = 0

    def data_received(self, data: bytes) -> None:
        goes_on = self._head_bytes is not None
        super().data_received(data)
        if goes_on and self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_AT_MOST and not self.transport.is_closing():
                self._refuse()

    def on_message_begin(self) -> None:
        self._head_bytes = self._read_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        self._count(url)
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._head_bytes is not None:
            self._count(name, value)
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        if not self.url.startswith(b"/") and self.url != b"*":
            raise ValueError("it asks for another host's address")
        super().on_headers_complete()

    def _count(self, *parts: bytes) -> None:
        self._read_bytes += sum(map(len, parts))
        if self._read_bytes > HEAD_BYTES_AT_MOST:
            raise ValueError("the head is too long")

    def _refuse(self) -> None:
        earlier: Any = self.cycle  # None before the first request
        if earlier is None or earlier.response_complete:
            self.send_400_response("The head of the request is too long.")
        else:
            self.transport.close()
