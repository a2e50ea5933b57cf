"""Who holds a payment, and who takes it away: each way of the one against each way of the other.

`holds` are the ways to have a payment in hand or to wait for it, `takes` the ways to take it back.
`table` says in a few words what each pair comes to, and `test_held` tries it. `python -m
tests.held` writes the table into docs/reference/payment-outcomes.md.
"""
