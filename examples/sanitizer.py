"""What nobody asked for is taken out of a form's answer before it is kept: card numbers.

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
