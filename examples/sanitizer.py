"""A plugin that removes card numbers from a form's answers before they are stored.

elicit serve my_tools:mcp --plugin sanitizer:sanitizer
"""

import re
from dataclasses import replace

from flows.hooks import GivenAnswer, before

CARD = re.compile(r"\b(?:[0-9][ -]?){12,18}([0-9])\b")


class Sanitizer:
    @before("shorten")
    def hide_cards(self, answer: GivenAnswer) -> GivenAnswer:
        content = {
            name: CARD.sub(r"****\1", value) if isinstance(value, str) else value
            for name, value in answer.content.items()
        }
        return replace(answer, content=content)


sanitizer = Sanitizer()
