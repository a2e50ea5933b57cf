"""`python -m tests.habits`: write the tables into docs/how-to/providers.md."""

from tests.habits.document import DOCUMENT, document

if __name__ == "__main__":
    DOCUMENT.write_text(document(), "utf-8")
