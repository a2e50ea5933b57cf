"""The payment provider's side of a test: the delivery of webhooks, valid and invalid.

The webhooks are the sandbox's own, signed as its provider signs them.
"""

from collections.abc import Awaitable, Callable, Mapping

import httpx
from msgspec.structs import replace

from webapp.sandbox.checkout.deliveries import Deliveries, DeliveryHabits, SandboxEvent

_OTHER = "elsewhere"


class ProviderWebhooks:
    """The payment provider's webhooks.

    The methods that send return the status code of the application's response.
    """

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
        """Set how webhooks are delivered from now on. Without arguments, each once and at once."""
        for one in self._deliveries:
            one.habits = DeliveryHabits(
                duplicates=duplicates, hold=hold, drop=drop, reorder=reorder
            )

    def hold(self) -> None:
        """Hold back new webhooks until they are released."""
        for one in self._deliveries:
            one.habits = replace(one.habits, hold=True)

    async def release(self) -> None:
        """Send the webhooks that were held back, and stop holding."""
        for one in self._deliveries:
            await one.post(one.release())

    async def send_again(self) -> int:
        """Send the latest webhook again."""
        deliveries, event = self._latest()
        return await self._status(deliveries.request_of(event))

    async def send_forged(self) -> int:
        """Send the latest webhook with its signature and a changed body."""
        deliveries, event = self._latest()
        signed = deliveries.request_of(event)
        headers = [pair for pair in signed.headers.raw if pair[0].lower() != b"content-length"]
        body = event.body + b" "
        return await self._status(httpx.Request("POST", event.url, content=body, headers=headers))

    async def send_foreign(self, session: str) -> int:
        """Send the latest webhook, signed by the provider, for a session that is not ours.

        `session` is the id of the session that the latest webhook is about.
        """
        deliveries, event = self._latest()
        body, id = event.body, event.id + _OTHER
        if session.encode() not in body:
            raise AssertionError(f"The latest webhook is about a session other than {session}.")
        for own, others in ((session, session + _OTHER), (event.id, id)):
            body = body.replace(own.encode(), others.encode())
        foreign = SandboxEvent(id=id, type=event.type, url=event.url, body=body)
        return await self._status(deliveries.request_of(foreign))

    def _latest(self) -> tuple[Deliveries, SandboxEvent]:
        for one in self._deliveries:
            if one.latest is not None:
                return one, one.latest
        raise AssertionError("The provider has sent no webhook yet: let the person pay first.")

    async def _status(self, request: httpx.Request) -> int:
        return (await self._send(request)).status_code
