// Answers clicks and printing, and draws the page.

const PAPER = "730px";

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (!button) return;
  if (button.classList.contains("sort")) {
    const head = button.closest("th");
    sortBy(head.closest("table"), head.cellIndex);
  } else if (button.classList.contains("copy")) {
    const source = button.closest(".source, .table");
    const text = button.dataset.copy === "text" ? source.querySelector("pre").textContent : tableAs(button.dataset.copy, source.querySelector("table"));
    copyText(text, source.querySelector(".said"));
  }
});
addEventListener("beforeprint", () => {
  document.querySelectorAll("details[data-print]:not([open])").forEach((each) => { each.open = true; each.dataset.folded = ""; });
  drawWithin(PAPER);
});
addEventListener("afterprint", () => {
  document.querySelectorAll("details[data-folded]").forEach((each) => { each.open = false; delete each.dataset.folded; });
  drawWithin("");
});

// a chart drawn for a wide window would be shrunk on paper, letters and all
function drawWithin(width) {
  document.body.style.maxWidth = width;
  for (const figure of document.querySelectorAll("figure[data-drawn]")) if (!isFolded(figure)) drawFigure(figure);
}

setUpTheme();
drawAll();
// a live page puts new content in place and asks for its charts and the order of its tables
globalThis.feddig = { draw: drawAll, sort: sortAgain };
