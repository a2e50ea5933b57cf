"""A plugin that counts each tool's outcomes, and measures how long people take to accept.

elicit serve my_tools:mcp --plugin analytics:analytics
"""

from collections import Counter, defaultdict
from datetime import timedelta

from flows.hooks import SettledQuestion, after


class Analytics:
    def __init__(self) -> None:
        self.ends = Counter[tuple[str, str]]()  # by tool and status
        self.times = defaultdict[str, list[timedelta]](list)

    @after("settle")
    def count(self, question: SettledQuestion) -> None:
        self.ends[question.tool, question.status] += 1

    @after("settle", when=lambda question: question.status == "accepted")
    def measure(self, question: SettledQuestion) -> None:
        self.times[question.tool].append(question.settled_at - question.asked_at)


analytics = Analytics()
