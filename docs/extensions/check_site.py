"""After the build: every link inside the site leads somewhere, and no page asks the network.

What is found is a warning, and ``make docs`` takes warnings for errors.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sphinx.util import logging

logger = logging.getLogger(__name__)
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src"}  # with the page


class Page(HTMLParser):
    """What a page links to, what it loads, and the places that others may link to."""

    def __init__(self, text: str):
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.nameless: list[str] = []  # pictures that say nothing to those who cannot see them
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.ids.add(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        if tag == "link" and given.get("href"):
            self.loads.append(str(given["href"]))
        if tag in LOADED and given.get(LOADED[tag]):
            self.loads.append(str(given[LOADED[tag]]))
        if tag == "img" and "alt" not in given:
            self.nameless.append(str(given.get("src")))


def problems(site: Path) -> list[str]:
    """What is wrong with a built site, a line each."""
    pages = {
        file.relative_to(site).as_posix(): Page(file.read_text(encoding="utf-8"))
        for file in sorted(site.rglob("*.html"))
    }
    found = []
    for name, page in pages.items():
        found += [f"{name}: the picture {one} has no alternative text" for one in page.nameless]
        for link in page.links + page.loads:
            found += [f"{name}: {why}" for why in _wrong(link, name, site, pages, page)]
    for file in sorted(site.rglob("*.css")):
        text = file.read_text(encoding="utf-8")
        if "@import" in text or "url(http" in text or "url(//" in text:
            found.append(f"{file.relative_to(site)}: it loads something from elsewhere")
    return found


def _wrong(link: str, name: str, site: Path, pages: dict[str, Page], page: Page) -> list[str]:
    parts = urlsplit(link)
    if parts.scheme == "data":
        return []
    if parts.scheme or parts.netloc:
        return [f"it loads {link} from elsewhere"] if link in page.loads else []
    target = name
    if parts.path:
        place = (site / name).parent / unquote(parts.path)
        if not place.exists():
            return [f"the link {link} leads nowhere"]
        target = place.resolve().relative_to(site.resolve()).as_posix()
    place_in = unquote(parts.fragment)
    known = pages.get(target)
    if place_in and known is not None and place_in not in known.ids and target != "search.html":
        return [f"there is no {place_in!r} in {target}"]
    return []


def _check(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.name == "html":
        for line in problems(Path(app.outdir)):
            logger.warning(line)


def setup(app: Any) -> dict[str, Any]:
    app.connect("build-finished", _check)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
