"""A store wrapper that reports the duration and result of each operation to an observer."""

from collections.abc import Awaitable, Callable
from time import perf_counter
from typing import Any, TypeVar, cast

from flows.errors import StoreUnavailable
from webapp.stores.store import Conflict, OtherFence, Store
from webapp.telemetry.families import UNOBSERVED, Observer

F = TypeVar("F", bound=Callable[..., Awaitable[Any]])


def observed(store: Store, observer: Observer) -> Store:
    """Wrap the store so that `observer` receives each operation.

    Return the store unchanged if no observer is set.
    """
    return store if observer is UNOBSERVED else ObservedStore(store, observer)


class ObservedStore:
    """A store that forwards each operation to another store and reports it to an observer."""

    def __init__(self, store: Store, observer: Observer) -> None:
        self._store = store
        self._observer = observer
        self.write = self._timed("write", store.write)
        self.read = self._timed("read", store.read)
        self.find = self._timed("find", store.find)
        self.list = self._timed("list", store.list)
        self.due = self._timed("due", store.due)
        self.erase = self._timed("erase", store.erase)
        self.check = self._timed("check", store.check)
        self.load = self._timed("load", store.load)
        self.fence = self._timed("fence", store.fence)
        self.fenced = self._timed("fenced", store.fenced)
        self.watch, self.scan, self.aclose = store.watch, store.scan, store.aclose

    @property
    def address(self) -> str | None:
        """See Store."""
        return self._store.address

    def _timed(self, operation: str, run: F) -> F:
        async def run_and_report(*args: Any, **options: Any) -> Any:
            began, result = perf_counter(), "failed"
            try:
                found = await run(*args, **options)
                result = "ok"
            except (Conflict, OtherFence):
                result = "conflict"
                raise
            except StoreUnavailable:
                result = "unavailable"
                raise
            else:
                return found
            finally:
                seconds = perf_counter() - began
                self._observer.store_answered(operation, seconds=seconds, result=result)

        return cast("F", run_and_report)
