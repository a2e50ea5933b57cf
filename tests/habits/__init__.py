"""Habits of providers, and wrong set-ups: two tables that tests check, cell by cell.

`python -m tests.habits` writes both tables into docs/how-to/providers.md.
"""
