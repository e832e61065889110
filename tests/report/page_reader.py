"""Reads a page as a strict browser would: what is opened is closed, ids are unique."""

from html.parser import HTMLParser

VOID = {"meta", "img", "link", "br", "input", "hr"}


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.tags: list[tuple[str, dict]] = []  # names and attributes
        self.text = ""
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert not self._open, f"never closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"an attribute twice in <{tag}>: {names}"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open, f"</{tag}> was never opened"
        assert self._open[-1] == tag, f"</{tag}> closes <{self._open[-1]}>"
        self._open.pop()

    def handle_data(self, data):
        if "style" not in self._open:
            self.text += " ".join(data.split()) + " " if data.strip() else ""

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]

    def values(self, attribute):
        return [attributes[attribute] for _, attributes in self.tags if attribute in attributes]
