"""A cache of the elicitations that this process wrote last and whose answer a call can still use.

A change may be decided on a cached copy, because the compare-and-set checks the version. Code that
needs the current value reads the store.
"""

from collections import OrderedDict

from flows.elicitation.states import Elicitation

REMEMBERED_AT_MOST = 10_000


class Cache:
    def __init__(self) -> None:
        self._by_id: OrderedDict[str, Elicitation] = OrderedDict()
        self._ended: OrderedDict[str, None] = OrderedDict()

    def get(self, id: str) -> Elicitation | None:
        return self._by_id.get(id)

    def has_ended(self, id: str) -> bool:
        """Return True if the elicitation is known to have ended. Ended elicitations stay ended."""
        return id in self._ended

    def store(self, value: Elicitation) -> bool:
        """Store the value. Return False if the cache has a newer version."""
        if value.status.is_final:
            self._ended[value.id] = None
            if len(self._ended) > REMEMBERED_AT_MOST:
                self._ended.popitem(last=False)
        known = self._by_id.get(value.id)
        if known is not None and known.version > value.version:
            return False
        is_for_somebody = not value.status.is_final or value.holds_key or value.take is not None
        if is_for_somebody and value.delivered_at is None:
            self._by_id[value.id] = value
            if len(self._by_id) > REMEMBERED_AT_MOST:
                self._by_id.popitem(last=False)
        else:
            self._by_id.pop(value.id, None)
        return True

    def forget(self, id: str) -> None:
        self._by_id.pop(id, None)

    def clear(self) -> None:
        """Remove all elicitations, and the ids of those that have ended.

        If the store went back to an older state, an elicitation that had ended can be open again.
        """
        self._by_id.clear()
        self._ended.clear()
