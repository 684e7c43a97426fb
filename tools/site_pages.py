"""What the documentation site has beyond docs/: a hook for mkdocs.

Documents link to files all over the repository, by paths that work where the repository is browsed. Here each
such file becomes a part of the site, and the links are turned to where it lies there:

- README.md is the start page, and the other documents of the top folder are pages by their own name;
- pictures are copied;
- a text file, such as a module or a results file, becomes a page that shows it.
"""

import os
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
FILES = "files"
"""Folder of the site for what is neither a document nor in docs/."""

PICTURES = {".png", ".svg", ".jpg"}
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".csv": "text", ".cff": "yaml"}

LINK = re.compile(r"(?P<before>\]\()(?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?P<after>\))")
CODE = re.compile(r"^```.*?^```|`[^`\n]+`", re.DOTALL | re.MULTILINE)


def place_in_site(path: str) -> str:
    """Give where a file of the repository lies in the site, as the name that mkdocs knows it by."""
    folder, name = posixpath.split(path)
    if folder == "docs" or folder.startswith("docs/"):
        return posixpath.relpath(path, "docs")
    if path == "README.md":
        return "index.md"
    if not folder and name.endswith(".md"):
        return name.lower()
    return f"{FILES}/{path}" if Path(name).suffix in PICTURES else f"{FILES}/{path}.md"


def links_of(page: str, text: str) -> Iterator[tuple[re.Match[str], str]]:
    """Find the links of a document to files of the repository: the match, and the file's path."""
    code = [found.span() for found in CODE.finditer(text)]
    for link in LINK.finditer(text):
        inside_code = any(start <= link.start() < end for start, end in code)
        if not inside_code and "://" not in link["target"]:
            yield link, posixpath.normpath(posixpath.join(posixpath.dirname(page), link["target"]))


def with_links_of_site(page: str, text: str) -> str:
    """Turn the links of a document to where their targets lie in the site."""
    here = posixpath.dirname(place_in_site(page))
    parts, end = [], 0
    for link, path in links_of(page, text):
        target = posixpath.relpath(place_in_site(path), here or ".")
        parts += [text[end : link.start()], link["before"], target, link["anchor"] or "", link["after"]]
        end = link.end()
    return "".join([*parts, text[end:]])


def documents() -> list[str]:
    """List the documents: those of the top folder, and those in docs/."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


def linked_files() -> list[str]:
    """List what documents link to and mkdocs would not find by itself."""
    paths = {path for page in documents() for _, path in links_of(page, (ROOT / page).read_text("utf-8"))}
    return sorted(path for path in paths if place_in_site(path).startswith(f"{FILES}/"))


def as_page(path: str) -> str:
    """Show a text file as a page, which the search leaves out: documents are what people look for."""
    text = (ROOT / path).read_text("utf-8")
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", text)), default=0))
    language = LANGUAGES.get(Path(path).suffix, "text")
    head = f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    return f"{head}{fence}{language}\n{text.rstrip()}\n{fence}\n"


# --- what mkdocs calls


def on_files(files: Any, config: Any) -> Any:
    """Add the documents of the top folder and the files that are linked to."""
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
    """Turn the links of every document; a page that shows a file has none."""
    home = {place_in_site(document): document for document in documents()}
    document = home.get(page.file.src_uri)
    return markdown if document is None else with_links_of_site(document, markdown)
