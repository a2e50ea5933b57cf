"""The payment provider's side of a test: how webhooks arrive, and those that nobody should send.

They are the sandbox's own, signed as its provider signs them.
"""

from collections.abc import Awaitable, Callable, Mapping

import httpx
from msgspec.structs import replace

from webapp.sandbox.checkout.deliveries import Deliveries, DeliveryHabits, SandboxEvent

_OTHER = "elsewhere"


class ProviderWebhooks:
    """What has the status of an answer is the application's to that webhook."""

    def __init__(
        self,
        deliveries: Mapping[str, Deliveries],
        send: Callable[[httpx.Request], Awaitable[httpx.Response]],
    ) -> None:
        self._deliveries = tuple(deliveries.values())
        self._send = send

    def arrive(
        self, *, duplicates: int = 0, hold: bool = False, drop: bool = False, reorder: bool = False
    ) -> None:
        """How they arrive from now on; without arguments each once, at once."""
        for one in self._deliveries:
            one.habits = DeliveryHabits(
                duplicates=duplicates, hold=hold, drop=drop, reorder=reorder
            )

    def hold(self) -> None:
        """Keep those that come from now on, until they are released."""
        for one in self._deliveries:
            one.habits = replace(one.habits, hold=True)

    async def release(self) -> None:
        """Send what was held, and hold no more."""
        for one in self._deliveries:
            await one.post(one.release())

    async def send_again(self) -> int:
        """The latest webhook once more."""
        deliveries, event = self._latest()
        return await self._status(deliveries.request_of(event))

    async def send_forged(self) -> int:
        """The latest one with its signature, its body changed."""
        deliveries, event = self._latest()
        signed = deliveries.request_of(event)
        headers = [pair for pair in signed.headers.raw if pair[0].lower() != b"content-length"]
        body = event.body + b" "
        return await self._status(httpx.Request("POST", event.url, content=body, headers=headers))

    async def send_foreign(self, session: str) -> int:
        """The latest one as of a session that nobody here began, signed by the provider.

        `session` is the one that it is about.
        """
        deliveries, event = self._latest()
        body, id = event.body, event.id + _OTHER
        if session.encode() not in body:
            raise AssertionError(f"The latest webhook is not about {session}.")
        for own, others in ((session, session + _OTHER), (event.id, id)):
            body = body.replace(own.encode(), others.encode())
        foreign = SandboxEvent(id=id, type=event.type, url=event.url, body=body)
        return await self._status(deliveries.request_of(foreign))

    def _latest(self) -> tuple[Deliveries, SandboxEvent]:
        for one in self._deliveries:
            if one.latest is not None:
                return one, one.latest
        raise AssertionError("The provider has told nothing yet: let the person pay first.")

    async def _status(self, request: httpx.Request) -> int:
        return (await self._send(request)).status_code
