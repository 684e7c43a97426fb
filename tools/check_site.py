"""Check that the built documentation site loads nothing from elsewhere: `python tools/check_site.py site`.

Links may lead to any place. What a browser loads by itself must be a file of the site.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
"""The elements that make a browser load something, and the attribute with its address."""

NOT_LOADED = {"canonical", "next", "prev", "alternate", "edit"}
"""Kinds of <link> that a browser does not load."""

IN_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s;]+)""")


class Loads(HTMLParser):
    """Collects the addresses that a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Collect the addresses that an element loads."""
        given = {name: value or "" for name, value in attributes}
        if tag == "link" and given.get("rel", "") in NOT_LOADED:
            return
        if tag in LOADED and given.get(LOADED[tag]):
            self.addresses.append(given[LOADED[tag]])
        self.addresses += IN_STYLE.findall(given.get("style", ""))


def loads_of(file: Path) -> list[str]:
    """List the addresses that a page or a style sheet of the site loads."""
    text = file.read_text("utf-8")
    if file.suffix == ".css":
        return IN_STYLE.findall(text)
    page = Loads()
    page.feed(text)
    styles = re.findall(r"<style[^>]*>(.*?)</style>", text, flags=re.DOTALL)
    return page.addresses + [address for style in styles for address in IN_STYLE.findall(style)]


def faults(site: Path) -> Iterator[str]:
    """Yield a line for each address that a page or style sheet loads from elsewhere, or that is missing."""
    for file in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        for address in loads_of(file):
            parts = urlsplit(address)
            if parts.scheme == "data":
                continue
            if parts.scheme or parts.netloc:
                yield f"{file.relative_to(site)}: loads {address}"
            elif parts.path and not _target(site, file, unquote(parts.path)).exists():
                yield f"{file.relative_to(site)}: {address} is not there"


def _target(site: Path, file: Path, path: str) -> Path:
    """Return the file that an address in a page means; 404.html uses addresses from the top."""
    return site / path.lstrip("/") if path.startswith("/") else file.parent / path


def main() -> None:
    """Check the site in the given folder."""
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        sys.exit(f"{site}: holds no site; build it with `make docs`")
    found = list(faults(site))
    if found:
        sys.exit("\n".join(found))
    pages = len(list(site.rglob("*.html")))
    print(f"{site}/index.html: {pages} pages that load nothing from elsewhere")


if __name__ == "__main__":
    main()
