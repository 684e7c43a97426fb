// Handles clicks, printing and the theme, and draws the page.

const PRINT_WIDTH = "730px";

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.classList.contains("sort")) {
    const head = button.closest("th");
    sortBy(head.closest("table"), head.cellIndex);
  } else if (button.classList.contains("copy")) {
    const source = button.closest(".source, .table");
    const text = button.dataset.copy === "text" ? source.querySelector("pre").textContent : tableText(button.dataset.copy, source.querySelector("table"));
    copyText(text, source.querySelector(".copy-status"));
  }
});
addEventListener("beforeprint", () => {
  document.querySelectorAll("details[data-print]:not([open])").forEach((each) => { each.open = true; each.dataset.folded = ""; });
  drawAtWidth(PRINT_WIDTH);
});
addEventListener("afterprint", () => {
  document.querySelectorAll("details[data-folded]").forEach((each) => { each.open = false; delete each.dataset.folded; });
  drawAtWidth("");
});

// draws the charts again for paper: charts of a wide window would be shrunk until their text is too small
function drawAtWidth(width) {
  document.body.style.maxWidth = width;
  for (const figure of document.querySelectorAll("figure[data-drawn]")) if (!isFolded(figure)) drawFigure(figure);
}

function setUpTheme() {
  const root = document.documentElement, button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
  const label = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", `switch to ${isDark() ? "light" : "dark"}`); };
  try { if (["light", "dark"].includes(localStorage.getItem("feddig-theme"))) root.dataset.theme = localStorage.getItem("feddig-theme"); } catch { /* without storage the system's theme is used */ }
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("feddig-theme", root.dataset.theme); } catch { /* without storage the choice lasts until the page is closed */ }
    label();
  });
  system.addEventListener("change", label);
  label();
}

setUpTheme();
drawAll();
// for the script of a live page, which replaces content
globalThis.feddig = { draw: drawAll, sort: sortAllAgain };
