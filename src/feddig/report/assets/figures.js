// Draws the figures that are to be seen, from the page's JSON block.

let data = { groups: [], runs: [] };

const numbersOf = (figure) => figure.dataset.chart === "accuracy"
  ? data.groups[Number(figure.dataset.group)] : data.runs[Number(figure.dataset.run)];

function drawFigure(figure) {
  if (figure.dataset.chart === "accuracy") {
    const group = numbersOf(figure);
    if (!group.rounds || !group.curves.some((curve) => known(curve.mean).length)) {
      figure.replaceChildren(put("p", { class: "faint" }, "There is no accuracy to draw yet."));
    } else lineChart(figure, { ...group, label: `${group.measured} accuracy` });
  } else {
    const run = numbersOf(figure);
    if (run.validation) panels(figure, run);
    else if (run.ribbon && run.ribbon.length) ribbon(figure, run);
  }
  figure.dataset.drawn = figure.clientWidth;
}

// what is folded is drawn when it is unfolded: of many runs most are never looked at
const isFolded = (figure) => figure.closest("details:not([open])") !== null;
document.addEventListener("toggle", (event) => {
  for (const figure of event.target.querySelectorAll("figure[data-chart]:not([data-drawn])")) if (!isFolded(figure)) drawFigure(figure);
}, true);

const watcher = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const isPanels = target.dataset.chart === "validation" && target.dataset.drawn && target.querySelector(".panels");
    if (target.clientWidth && !isFolded(target) && !isPanels && Number(target.dataset.drawn) !== target.clientWidth) drawFigure(target);
  }
});

const drawnFrom = new WeakMap();

// draws what was never drawn, and what has other numbers now
function drawAll() {
  data = JSON.parse(document.getElementById("data").textContent);
  for (const { strip } of [...data.groups, ...data.runs]) unfold(strip);
  watcher.disconnect();
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const numbers = JSON.stringify([figure.dataset.chart, numbersOf(figure)]);
    if (drawnFrom.get(figure) !== numbers) delete figure.dataset.drawn;
    drawnFrom.set(figure, numbers);
    if (!figure.dataset.drawn && !isFolded(figure)) drawFigure(figure);
    watcher.observe(figure);
  }
}
