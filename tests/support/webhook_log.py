"""Helpers that find and replay a webhook of the log."""

from tests.support.shop_env import Shop
from webapp.cli.webhooks import replay_hook
from webapp.records.ids import tail_of
from webapp.records.values import StoredWebhook


async def only(shop: Shop, status: str) -> StoredWebhook:
    (found,) = [hook for hook in await shop.webhooks() if hook.status == status]
    return found


async def replayed(shop: Shop, hook: StoredWebhook) -> str:
    (line,) = await replay_hook(shop.service, tail_of(hook))
    return line
