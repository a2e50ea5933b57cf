"""Where records are kept: one protocol, and a file for each place that fulfils it."""

from webapp.stores.opening import holds_something, open_store
from webapp.stores.store import Conflict, Record, Store

__all__ = ["Conflict", "Record", "Store", "holds_something", "open_store"]
