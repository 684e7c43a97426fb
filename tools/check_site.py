"""Check that the built documentation site asks nobody for anything: `python tools/check_site.py site`.

Links that a person may click lead where they like. What a browser loads by itself must lie in the site.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "link": "href"}
"""Elements that a browser fetches something for, and the attribute that says what."""

NOT_LOADED = {"canonical", "next", "prev", "alternate", "edit"}
"""Kinds of <link> that only tell where something is."""

IN_STYLE = re.compile(r"""(?:url\(|@import)\s*["']?([^"')\s;]+)""")


class Loads(HTMLParser):
    """Collects the addresses that a page loads, and what it says in styles."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        """Note what an element loads."""
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
    """Say of each page and style sheet what it loads from elsewhere, or what is missing."""
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
    """Give the file that an address in a page means; 404.html names its own from the top."""
    return site / path.lstrip("/") if path.startswith("/") else file.parent / path


def main() -> None:
    """Check the site in the folder that is given."""
    site = Path(sys.argv[1])
    if not (site / "index.html").is_file():
        sys.exit(f"{site}: holds no site; make docs builds one")
    found = list(faults(site))
    if found:
        sys.exit("\n".join(found))
    pages = len(list(site.rglob("*.html")))
    print(f"{site}/index.html: {pages} pages that load nothing from elsewhere")


if __name__ == "__main__":
    main()
