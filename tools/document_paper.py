"""Write the tables of docs/reproduction.md from the result files, so that the page and the runs cannot disagree.

A table stands between <!-- NAME --> and <!-- end -->.
"""

import re
from pathlib import Path

from feddig.runs.paper.cells import finished_cells, read_lines, read_table
from feddig.runs.paper.table import tabulate, to_markdown

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reproduction.md"
TABLES, RESULTS = ROOT / "experiments" / "paper", ROOT / "benchmarks" / "results" / "paper"
BLOCK = re.compile(r"<!-- (?P<name>[\w-]+) -->\n.*?<!-- end -->", re.DOTALL)


def page(text: str) -> str:
    """Return the page with every table written again."""
    finished = finished_cells(read_lines(RESULTS))

    def block(found: re.Match[str]) -> str:
        table = read_table(TABLES, found["name"])
        text = to_markdown(table, tabulate(table, finished))
        return f"<!-- {table.name} -->\n\n{text}\n<!-- end -->"

    return BLOCK.sub(block, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
