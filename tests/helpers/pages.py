"""Reads HTML as a browser would, and fails where it holds what nobody meant to put there."""

from __future__ import annotations

from html.parser import HTMLParser

from helpers.files.hostile_texts import check_printable

_TAGS = {
    "div", "style", "pre", "header", "b", "span", "code", "bdi", "details", "summary", "table",
    "tbody", "tr", "td", "ol", "li", "svg", "polygon", "line", "path", "circle", "text", "br",
}  # fmt: skip
_ATTRIBUTES = {
    "class", "style", "open", "viewbox", "width", "height", "role", "points", "fill", "stroke",
    "stroke-width", "stroke-opacity", "x1", "x2", "y1", "y2", "d", "cx", "cy", "r", "x", "y",
    "font-size", "text-anchor",
}  # fmt: skip


class Page(HTMLParser):
    """A page, its texts and its elements; made of anything else it is refused."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.texts: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert self._open == []

    @property
    def text(self) -> str:
        """What a reader sees, without the plain version that is hidden."""
        return " ".join(self.texts)

    def handle_starttag(self, tag, attrs):
        assert tag in _TAGS, tag
        for name, value in attrs:
            assert name in _ATTRIBUTES, name
            assert "(" not in (value or "") or name == "fill", value
        self.elements.append((tag, dict(attrs)))
        if not self.get_starttag_text().endswith("/>") and tag != "br":
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        inside = self._open[-1] if self._open else ""
        if inside == "style":
            assert "url(" not in data
            assert "import" not in data.replace("!important", "")
            return
        check_printable(data)
        if inside != "pre":
            assert self._open, data
            self.texts.append(data)

    def handle_comment(self, data):
        raise AssertionError(data)

    def handle_decl(self, decl):
        raise AssertionError(decl)

    def handle_pi(self, data):
        raise AssertionError(data)

    def unknown_decl(self, data):
        raise AssertionError(data)
