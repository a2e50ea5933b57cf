"""`python -m tests.clients`: run all clients, and write the table of docs/reference/clients.md."""

import logging

from tests.clients.document import DOCUMENT, document

if __name__ == "__main__":
    logging.disable()  # hide the libraries' log
    DOCUMENT.write_text(document(), "utf-8")
