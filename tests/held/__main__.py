"""`python -m tests.held`: write the table into docs/reference/payment-outcomes.md."""

from tests.held.table import FILE, with_table

if __name__ == "__main__":
    FILE.write_text(with_table(FILE.read_text("utf-8")), "utf-8")
