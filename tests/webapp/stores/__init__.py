"""Tests of the stores: one contract for all, then what only SQLite can get wrong."""
