"""`python -m tests.clients`: plays all clients, and writes the table of docs/clients.md."""

import logging

from tests.clients.document import DOCUMENT, document

if __name__ == "__main__":
    logging.disable()  # the libraries'
    DOCUMENT.write_text(document(), "utf-8")
