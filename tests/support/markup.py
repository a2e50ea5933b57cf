"""A parser that reads the elements and the text of a page from its HTML."""

from html.parser import HTMLParser

VOID = {"meta", "link", "input", "br", "img", "path", "circle"}


class Page(HTMLParser):
    """The elements and visible text of a page. Parsing fails if elements overlap."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[tuple[str, str]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data):
        self.words.extend((tag, data) for tag in self._open or ["document"])

    def named(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def text(self, tag: str = "html") -> str:
        return "".join(data for name, data in self.words if name == tag)

    def main_text(self) -> str:
        """Return the text of <main> as one line."""
        return " ".join(self.text("main").split())

    def actions(self) -> list[str]:
        """Return the actions of the page's forms in order."""
        return [form["action"] for form in self.named("form")]
