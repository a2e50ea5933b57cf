"""The httptools protocol of uvicorn, with limits that uvicorn lacks.

Risks: uvicorn limits the request head only with h11; with httptools, an endless head would be
buffered until the timeout. Trailers of a chunked body (RFC 9112, 7.1.2) would be appended to the
head of a request that is already being answered. A request for another host's absolute URL (RFC
9112, 3.2.2) would be answered as one for this host.
"""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_BYTES_AT_MOST = 64 * 1024  # large enough for the cookies of all programs on 127.0.0.1


class _ReadHead(list[tuple[bytes, bytes]]):
    """The headers of a head that ended. Trailers are not added."""

    def append(self, _: tuple[bytes, bytes]) -> None:
        pass


class FastProtocol(HttpToolsProtocol):
    """An HTTP protocol in which exceptions of the callbacks become a 400 response."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        # The current head's bytes that arrived after its first chunk; None outside of a head.
        self._head_bytes: int | None = None

    def data_received(self, data: bytes) -> None:
        goes_on = self._head_bytes is not None
        super().data_received(data)
        if goes_on and self._head_bytes is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_AT_MOST and not self.transport.is_closing():
                self._refuse()

    def on_message_begin(self) -> None:
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        read_bytes = sum([len(name) + len(value) for name, value in self.headers], len(self.url))
        if read_bytes > HEAD_BYTES_AT_MOST:
            raise ValueError("the head is too long")
        if not self.url.startswith(b"/") and self.url != b"*":
            raise ValueError("it asks for another host's address")
        super().on_headers_complete()
        self.headers = _ReadHead(self.headers)

    def _refuse(self) -> None:
        earlier: Any = self.cycle  # None before the first request
        if earlier is None or earlier.response_complete:
            self.send_400_response("The head of the request is too long.")
        else:
            self.transport.close()
