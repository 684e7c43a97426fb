// Copies figures and tables, as CSV, Markdown or LaTeX.

const asCsv = (rows) => rows.map((row) => row.map((cell) => /[",\n\r]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : cell).join(",")).join("\n") + "\n";

function tableAs(kind, table) {
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

async function copyText(text, said) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // pages from disk may not use the clipboard in every browser; the old way still works there
    const field = put("textarea", { style: "position:fixed;opacity:0" });
    field.value = text;
    document.body.append(field);
    field.select();
    done = document.execCommand("copy");
    field.remove();
  }
  said.textContent = done ? "copied" : "copying is not allowed here";
  setTimeout(() => { said.textContent = ""; }, 2500);
}
