"""Tests of each way to hold a payment against each way to take it back.

`holds` has the ways to hold a payment or to wait for it, `takes` the ways to take it back. `table`
has the expected outcome of each pair, and test_held.py tests it. `python -m tests.held` writes the
table into docs/reference/payment-outcomes.md.
"""
