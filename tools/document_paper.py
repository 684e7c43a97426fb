"""Write the tables and pictures of docs/reproduction.md from the result files, so that page and runs cannot disagree.

A table stands between <!-- NAME --> and <!-- end -->; a picture is docs/images/paper-NAME.png.
"""

import re
from pathlib import Path

from feddig.files import write_atomically
from feddig.report.pictures import to_bytes
from feddig.runs.paper.cells import finished_cells, read_lines, read_table
from feddig.runs.paper.picture import draw_table
from feddig.runs.paper.table import tabulate, to_markdown

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reproduction.md"
TABLES, RESULTS = ROOT / "experiments" / "paper", ROOT / "benchmarks" / "results" / "paper"
PICTURE = re.compile(r"images/paper-([\w-]+)\.png")
DPI = 110
BLOCK = re.compile(r"<!-- (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def page(text: str) -> str:
    """Return the page with every table written again."""
    finished = finished_cells(read_lines(RESULTS))

    def block(found: re.Match[str]) -> str:
        table = read_table(TABLES, found["name"])
        text = to_markdown(table, tabulate(table, finished))
        return f"<!-- {table.name} -->\n\n{text}\n<!-- end -->"

    return BLOCK.sub(block, text)


def pictures(text: str) -> dict[Path, bytes]:
    """Return the pictures of the page by their paths."""
    finished = finished_cells(read_lines(RESULTS))
    return {
        PAGE.parent / found[0]: to_bytes(draw_table(read_table(TABLES, found[1]), finished), "png", DPI)
        for found in PICTURE.finditer(text)
    }


if __name__ == "__main__":
    for path, content in pictures(PAGE.read_text(encoding="utf-8")).items():
        write_atomically(path, content)
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
