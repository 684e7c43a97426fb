// Sorts tables by their columns, and copies them as CSV, Markdown or LaTeX.

const cellText = (cell) => cell.textContent.trim().replaceAll("\u00a0", " ");

function sortBy(table, column) {
  const heads = [...table.tHead.rows[0].cells], head = heads[column];
  const before = head.getAttribute("aria-sort");
  // numbers start with the largest, text with A
  const down = before ? before === "ascending" : head.classList.contains("number");
  heads.forEach((each) => each.removeAttribute("aria-sort"));
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  sortRows(table, head, down);
}

function sortRows(table, head, down) {
  const body = table.tBodies[0], column = head.cellIndex, numeric = head.classList.contains("number");
  const value = (row) => numeric ? row.cells[column].dataset.value : cellText(row.cells[column]);
  const rows = [...body.rows].sort((a, b) => {
    const [one, two] = [value(a), value(b)];
    if (one === "" || two === "") return (one === "") - (two === "");  // unknown values stay at the end
    const order = numeric ? Number(one) - Number(two) : one.localeCompare(two, "en", { numeric: true });
    return down ? -order : order;
  });
  body.append(...rows);
}

// sorts new rows into tables that the reader has sorted
function sortAllAgain() {
  for (const head of document.querySelectorAll("th[aria-sort]")) {
    sortRows(head.closest("table"), head, head.getAttribute("aria-sort") === "descending");
  }
}

const asCsv = (rows) => rows.map((row) => row.map((cell) => /[",\n\r]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : cell).join(",")).join("\n") + "\n";

function tableText(kind, table) {
  const heads = [...table.tHead.rows[0].cells].map((cell) => cellText(cell));
  const rows = [...table.tBodies[0].rows].map((row) => [...row.cells]);
  if (kind === "CSV") {
    const spread = heads.map((_, column) => rows.some((row) => row[column].dataset.sd));
    const title = heads.flatMap((head, column) => spread[column] ? [`${head} mean`, `${head} sd`] : [head]);
    const lines = rows.map((row) => row.flatMap((cell, column) => {
      const value = cell.dataset.value ?? cellText(cell);
      return spread[column] ? [value, cell.dataset.sd ?? ""] : [value];
    }));
    return asCsv([title, ...lines]);
  }
  const texts = rows.map((row) => row.map(cellText));
  if (kind === "Markdown") {
    const line = (cells) => `| ${cells.map((cell) => cell.replaceAll("\\", "\\\\").replaceAll("|", "\\|").replaceAll("<", "&lt;")).join(" | ")} |\n`;
    const rule = [...table.tHead.rows[0].cells].map((cell) => cell.classList.contains("number") ? "---:" : "---");
    return line(heads) + line(rule) + texts.map(line).join("");
  }
  const safe = (text) => text.replace(/[\\{}$&#^_%~]/g, (sign) => ({ "\\": "\\textbackslash{}", "^": "\\textasciicircum{}", "~": "\\textasciitilde{}" })[sign] || `\\${sign}`)
    .replaceAll("±", "$\\pm$").replaceAll("−", "$-$").replaceAll("–", "--");
  const columns = [...table.tHead.rows[0].cells].map((cell) => cell.classList.contains("number") ? "r" : "l").join("");
  const line = (cells) => `  ${cells.map(safe).join(" & ")} \\\\\n`;
  return `% needs \\usepackage{booktabs}\n\\begin{tabular}{${columns}}\n  \\toprule\n${line(heads)}  \\midrule\n${texts.map(line).join("")}  \\bottomrule\n\\end{tabular}\n`;
}

async function copyText(text, status) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // some browsers do not let pages from disk use the clipboard; the old command still works there
    const field = element("textarea", { style: "position:fixed;opacity:0" });
    field.value = text;
    document.body.append(field);
    field.select();
    done = document.execCommand("copy");
    field.remove();
  }
  status.textContent = done ? "copied" : "copying is not allowed here";
  setTimeout(() => { status.textContent = ""; }, 2500);
}
