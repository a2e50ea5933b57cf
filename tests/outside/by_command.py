"""An operator's commands, each in a new process, on the store of a shop and its sandbox.

`elicit payments refund` cannot refund at a sandbox. So these commands do the same work with the
server's sandbox settings. The last line of a command's output is JSON.
"""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import Any

from tests.crash.account_env import AccountEnv
from tests.crash.account_server import AccountOrders
from tests.crash.server import settings_of
from tests.support.cli import start
from tests.support.processes import ended
from webapp.cli.payments import list_payments, refund_payment
from webapp.cli.purge import purge_owner
from webapp.command import CommandRefused, connected, quieten
from webapp.service import Service
from webapp.settings.sandboxed import with_sandbox


async def refund(service: Service, id: str, amount: str | None = None) -> list[str]:
    return await refund_payment(service, id, reason=None, also_spent=False, amount=amount)


async def listed(service: Service) -> list[str]:
    table = await list_payments(service, only_open=False)
    return [f"{row.id} {row.standing} {row.note}" for row in table.rows]


async def purge(service: Service) -> list[str]:
    (owner,) = {row.owner for row in await service.elicitations.store.list("payment")}
    return await purge_owner(service, owner, is_sure=True)


WORK: dict[str, Callable[..., Coroutine[Any, Any, list[str]]]] = {
    work.__name__: work for work in (refund, listed, purge)
}


async def output_of(env: AccountEnv, *words: str) -> str:
    """Return the output of a command."""
    (output,) = await outputs_of(env, words)
    return output


async def outputs_of(env: AccountEnv, *commands: Sequence[str]) -> list[str]:
    """Return the outputs of commands that start at the same moment in separate processes."""
    about = {
        "port": env.port,
        "folder": str(env.folder),
        "store": env.address,
        "sandbox": asdict(env.sandbox),
    }
    processes = [
        await start(json.dumps(about), *words, module=__name__, home=env.folder, stdin=PIPE)
        for words in commands
    ]
    for process in processes:
        assert process.stdout is not None
        await process.stdout.readline()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write(b"go\n")
    done = [await ended(process) for process in processes]
    assert all(one.out.strip() for one in done), [one.err for one in done]
    return ["\n".join(json.loads(one.out.splitlines()[-1])) for one in done]


async def main(about: dict[str, Any], name: str, *words: str) -> None:
    orders = AccountOrders(
        port=0, public_port=about["port"], folder=about["folder"], sandbox=about["sandbox"]
    )
    settings = settings_of(public_port=about["port"], folder=about["folder"], store=about["store"])
    quieten()
    try:
        async with connected(with_sandbox(settings, orders.settings)) as service:
            print("ready", flush=True)  # noqa: T201 - the parent process waits for this line
            await asyncio.to_thread(sys.stdin.readline)
            sentences = await WORK[name](service, *words)
    except CommandRefused as refused:
        sentences = [*refused.sentences]
    print(json.dumps(sentences))  # noqa: T201 - its output is its report


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1]), *sys.argv[2:]))
