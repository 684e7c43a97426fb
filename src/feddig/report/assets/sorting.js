// Sorts tables by their heads.

const cellText = (cell) => cell.textContent.trim();

function sortBy(table, column) {
  const heads = [...table.tHead.rows[0].cells], head = heads[column];
  const before = head.getAttribute("aria-sort");
  // figures: the largest first; words: from A on
  const down = before ? before === "ascending" : head.classList.contains("number");
  heads.forEach((each) => each.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  putInOrder(table, head, down);
}

function putInOrder(table, head, down) {
  const body = table.tBodies[0], column = head.cellIndex, numeric = head.classList.contains("number");
  const value = (row) => numeric ? row.cells[column].dataset.value : cellText(row.cells[column]);
  const rows = [...body.rows].sort((a, b) => {
    const [one, two] = [value(a), value(b)];
    if (one === "" || two === "") return (one === "") - (two === "");  // what is not known stays at the end
    const order = numeric ? Number(one) - Number(two) : one.localeCompare(two, "en", { numeric: true });
    return down ? -order : order;
  });
  body.append(...rows);
}

// rows that came later take their places among those that were sorted
function sortAgain() {
  for (const head of document.querySelectorAll("th[aria-sort]")) {
    putInOrder(head.closest("table"), head, head.getAttribute("aria-sort") === "descending");
  }
}
