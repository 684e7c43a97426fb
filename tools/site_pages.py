"""Add files outside docs/ to the documentation site: a hook for mkdocs.

Documents link to files of the repository by relative paths. Each such file becomes a part of the site, and the links
are changed to its place there:

- README.md is the start page, and the other documents of the top folder are pages by their own name;
- pictures are copied;
- a text file, such as a module or a results file, becomes a page that shows it; a notebook's cells are shown in turn.
"""

import json
import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FILES = "files"
"""Folder of the site for files that are neither documents nor in docs/."""

PICTURES = {".png", ".svg", ".jpg"}
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".csv": "text", ".cff": "yaml"}

LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?P<after>\))")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def place_in_site(path: str) -> str:
    """Return the place of a repository's file in the site, as mkdocs names it."""
    folder, name = posixpath.split(path)
    if folder == "docs" or folder.startswith("docs/"):
        return posixpath.relpath(path, "docs")
    if path == "README.md":
        return "index.md"
    if not folder and name.endswith(".md"):
        return name.lower()
    return f"{FILES}/{path}" if Path(name).suffix in PICTURES else f"{FILES}/{path}.md"


def links_of(page: str, text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Yield the links of a document to files of the repository, each as its match and the file's path."""
    code = [found.span() for found in CODE.finditer(text)]
    for link in LINK.finditer(text):
        inside_code = any(start <= link.start() < end for start, end in code)
        if not inside_code and "://" not in link["target"]:
            yield link, posixpath.normpath(posixpath.join(posixpath.dirname(page), link["target"]))


def with_links_of_site(page: str, text: str) -> str:
    """Change the links of a document to the places of their targets in the site."""
    here = posixpath.dirname(place_in_site(page))
    parts, end = [], 0
    for link, path in links_of(page, text):
        target = posixpath.relpath(place_in_site(path), here or ".")
        parts += [text[end : link.start()], link["before"], target, link["anchor"] or "", link["after"]]
        end = link.end()
    return "".join([*parts, text[end:]])


def documents() -> list[str]:
    """List the documents in the top folder and in docs/."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def linked_files() -> list[str]:
    """List the files that documents link to and that mkdocs does not find by itself."""
    paths = {path for page in documents() for _, path in links_of(page, (ROOT / page).read_text("utf-8"))}
    return sorted(path for path in paths if place_in_site(path).startswith(f"{FILES}/"))


def as_page(path: str) -> str:
    """Return a page that shows a text file; the search leaves it out, because readers look for documents."""
    text = (ROOT / path).read_text("utf-8")
    head = f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    if path.endswith(".ipynb"):
        cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]]
        return head + "\n".join(
            fenced(source, "python") if kind == "code" else f"{source}\n" for kind, source in cells
        )
    return head + fenced(text, LANGUAGES.get(Path(path).suffix, "text"))


def fenced(text: str, language: str) -> str:
    """Return a block of code, whatever fences it holds."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


# --- called by mkdocs


def on_files(files: Any, config: Any) -> Any:
    """Add the documents of the top folder and the linked files."""
    from mkdocs.structure.files import File

    for page in documents():
        if "/" not in page:
            files.append(File.generated(config, place_in_site(page), abs_src_path=str(ROOT / page)))
    for path in linked_files():
        place = place_in_site(path)
        if place.endswith(".md"):
            files.append(File.generated(config, place, content=as_page(path)))
        else:
            files.append(File.generated(config, place, abs_src_path=os.fspath(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Change the links of every document; a page that shows a file has none."""
    home = {place_in_site(document): document for document in documents()}
    document = home.get(page.file.src_uri)
    return markdown if document is None else with_links_of_site(document, markdown)
