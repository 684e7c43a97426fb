// Draws the charts of a page from its JSON block, and moves a marker over their rounds.

let data = { groups: [], runs: [] };

const figureData = (figure) => "group" in figure.dataset ? data.groups[Number(figure.dataset.group)] : data.runs[Number(figure.dataset.run)];

function drawFigure(figure) {
  if (figure.dataset.chart === "accuracy") {
    const group = figureData(figure);
    if (!group.rounds || !group.curves.some((curve) => withoutNulls(curve.mean).length)) {
      figure.replaceChildren(element("p", { class: "faint" }, "There is no accuracy to draw yet."));
    } else lineChart(figure, { ...group, label: `${group.measured} accuracy` });
  } else if (figure.dataset.chart === "classes") {
    drawClasses(figure, figureData(figure));
  } else if (figure.dataset.chart === "epsilon") {
    drawEpsilons(figure, figureData(figure));
  } else if (figure.dataset.chart === "cost") {
    drawCosts(figure, figureData(figure));
  } else {
    const run = figureData(figure);
    if (run.validation) drawPanels(figure, run);
    else if (run.ribbon && run.ribbon.length) drawQuantiles(figure, run);
  }
  figure.dataset.drawn = figure.clientWidth;
}

// folded charts are drawn when they are unfolded: most of many runs are never opened
const isFolded = (figure) => figure.closest("details:not([open])") !== null;
document.addEventListener("toggle", (event) => {
  for (const figure of event.target.querySelectorAll("figure[data-chart]:not([data-drawn])")) if (!isFolded(figure)) drawFigure(figure);
}, true);

const resizeObserver = new ResizeObserver((entries) => {
  for (const { target } of entries) {
    const isPanels = target.dataset.chart === "validation" && target.dataset.drawn && target.querySelector(".panels");
    if (target.clientWidth && !isFolded(target) && !isPanels && Number(target.dataset.drawn) !== target.clientWidth) drawFigure(target);
  }
});

const drawnFrom = new WeakMap();

// draws charts that were never drawn, and charts whose numbers have changed
function drawAll() {
  data = JSON.parse(document.getElementById("data").textContent);
  for (const { strip } of [...data.groups, ...data.runs]) expandStrip(strip);
  resizeObserver.disconnect();
  for (const figure of document.querySelectorAll("figure[data-chart]")) {
    const numbers = JSON.stringify([figure.dataset.chart, figureData(figure)]);
    if (drawnFrom.get(figure) !== numbers) delete figure.dataset.drawn;
    drawnFrom.set(figure, numbers);
    if (!figure.dataset.drawn && !isFolded(figure)) drawFigure(figure);
    resizeObserver.observe(figure);
  }
}

// --- accuracy over rounds, with the absence strip below

const hidden = new WeakMap();

function lineChart(figure, spec) {
  const off = hidden.get(figure) || hidden.set(figure, new Set()).get(figure);
  const shown = spec.curves.filter((curve) => !off.has(curve.name));
  const whole = Math.max(figure.clientWidth || 0, 280);
  const roomy = whole >= 560;
  const names = roomy ? shown.map((curve) => `${curve.name} ${(withoutNulls(curve.mean).at(-1) ?? 0).toFixed(1)}`) : [];
  const right = roomy ? Math.min(200, Math.max(20, ...names.map(textWidth)) + 14) : 12;
  const rows = spec.strip.bars && rowHeight(spec.strip.silos) >= 10;
  const longest = rows ? Math.max(0, ...spec.strip.names.map((name) => name.length * 6.2)) : 0;
  const left = Math.min(roomy ? 130 : 84, Math.max(44, longest + 10));
  const width = whole - left - right, top = 22;
  const height = Math.round(Math.min(340, Math.max(190, whole * 0.36)));
  const under = stripHeight(spec.strip), gap = under ? 12 : 0, bottom = top + height + gap + under;
  const every = [...spec.curves.flatMap((curve) => [curve.mean, curve.low, curve.high, curve.lowest, curve.highest])];
  const y = percentScale(every.flatMap(withoutNulls), height, 5), at = (value) => top + y.at(value);
  const x = roundScale(spec.rounds, left, width);
  const svg = svgElement("svg", {
    viewBox: `0 0 ${whole} ${bottom + 24}`, role: "presentation",
    "data-low": y.low, "data-high": y.high, "data-top": top, "data-height": height, "data-left": left, "data-width": width,
    "data-rounds": spec.rounds,
  });
  const pattern = addHatchPattern(svg);

  svg.append(svgElement("text", { x: left, y: 11 }, `${spec.label} (%)`));
  for (const tick of y.ticks) {
    svg.append(svgElement("line", { class: "grid", x1: left, x2: left + width, y1: at(tick), y2: at(tick) }),
      svgElement("text", { x: left - 8, y: at(tick) + 4, "text-anchor": "end" }, String(rounded(tick))));
  }
  for (const round of departures(spec.strip)) {
    const place = x.edge(round);
    svg.append(svgElement("line", { class: "event", x1: place, x2: place, y1: top, y2: bottom }));
  }
  const step = Math.max(1, niceStep(spec.rounds, Math.max(4, width / 90)));
  for (let round = 0; round < spec.rounds; round += step) {
    svg.append(svgElement("text", { x: x.at(round), y: bottom + 17, "text-anchor": "middle" }, String(round)));
  }
  svg.append(svgElement("text", { x: left - 9, y: bottom + 17, "text-anchor": "end" }, "round"));

  for (const curve of shown) {
    const paint = `fill:var(--c${curve.colour})`;
    if (curve.lowest) svg.append(svgElement("path", { class: "band outer", style: paint, d: bandPath(curve.lowest, curve.highest, x.at, at) }));
    if (curve.low) svg.append(svgElement("path", { class: "band", style: paint, d: bandPath(curve.low, curve.high, x.at, at) }));
  }
  for (const curve of shown) {
    svg.append(svgElement("path", {
      class: "curve", "data-curve": curve.name, "stroke-dasharray": curve.dash || null,
      style: `stroke:var(--c${curve.colour})${spec.rounds < 2 ? ";stroke-width:8" : ""}`, d: linePath(curve.mean, x.at, at),
    }));
  }
  for (const { mark, mean, colour } of shown) {
    const [before, after] = mark > 0 ? [mean[mark - 1], mean[mark]] : [null, null];
    if (before !== null && after !== null) svg.append(svgElement("circle", { class: "curve-mark", cx: x.edge(mark), cy: at((before + after) / 2), r: 4.5, style: `stroke:var(--c${colour})` }));
  }
  if (roomy) placeLabels(svg, shown, names, left + width + 8, at, top, height);
  if (under) drawStrip(svg, spec.strip, x, left, top + height + gap, pattern);

  const cross = svgElement("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
  const dots = shown.map((curve) => svgElement("circle", { r: 3.5, visibility: "hidden", style: `fill:var(--c${curve.colour});stroke:var(--paper);stroke-width:1.5` }));
  svg.append(cross, ...dots);
  const tip = element("div", { class: "tip", hidden: true });
  const plot = element("div", { class: "plot" }, svg, tip);

  const show = (round) => {
    tip.hidden = round < 0;
    cross.setAttribute("visibility", round < 0 ? "hidden" : "visible");
    dots.forEach((dot) => dot.setAttribute("visibility", "hidden"));
    if (round < 0) return "";
    const place = x.at(round);
    extend(cross, { x1: place, x2: place }, []);
    const values = shown.map((curve, number) => ({ curve, dot: dots[number], value: curve.mean[round] ?? null }));
    for (const { dot, value } of values) {
      if (value !== null) extend(dot, { cx: place, cy: at(value), visibility: "visible" }, []);
    }
    const sorted = values.filter((each) => each.value !== null).sort((a, b) => b.value - a.value);
    const range = (curve) => curve.low ? ` (${curve.low[round].toFixed(1)}–${curve.high[round].toFixed(1)})` : "";
    const who = under ? describeCounts(spec.strip, round) : "";
    tip.replaceChildren(element("div", {}, element("b", {}, `round ${round}`)),
      ...sorted.map(({ curve, value }) => element("div", {}, element("i", { style: `background:var(--c${curve.colour})` }),
        element("span", {}, curve.name), element("b", {}, formatPercent(value) + range(curve)))),
      ...(who ? [element("div", {}, element("span", {}, who))] : []));
    const scale = plot.clientWidth / whole, wide = tip.offsetWidth;
    tip.style.left = `${place * scale + wide + 24 > plot.clientWidth ? Math.max(0, place * scale - wide - 12) : place * scale + 12}px`;
    tip.style.top = `${top}px`;
    return `round ${round}: ${sorted.map(({ curve, value }) => `${curve.name} ${formatPercent(value)}`).join(", ")}. ${who}`;
  };
  const done = Math.max(1, ...spec.curves.map((curve) => curve.mean.length));
  const go = addMarker(figure, plot, done, spec.label, (event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(done - 1, x.nearest((event.clientX - box.left) / box.width * whole));
  }, show);
  replaceDrawing(figure, go, chartLegend(figure, spec, off), plot, under ? stripLegend([spec.strip]) : "");
}

function placeLabels(svg, curves, names, x, at, top, height) {
  const spots = curves.map((curve, number) => ({ curve, name: names[number], y: at(withoutNulls(curve.mean).at(-1) ?? 0) }))
    .filter(({ curve }) => withoutNulls(curve.mean).length).sort((a, b) => a.y - b.y);
  spots.forEach((spot, place) => { if (place) spot.y = Math.max(spot.y, spots[place - 1].y + 15); });
  const over = spots.length ? Math.max(0, spots.at(-1).y - (top + height)) : 0;
  for (const { curve, name, y } of spots) {
    // the end of a long name says by which setting it differs
    const cut = name.length > 26 ? `${name.slice(0, 7)}…${name.slice(-18)}` : name;
    svg.append(svgElement("text", { class: "label", x, y: y - over + 4, style: `fill:var(--c${curve.colour})` }, cut));
  }
}

const swatch = (curve) => svgElement("svg", { viewBox: "0 0 34 10", "aria-hidden": "true" }, svgElement("line",
  { x1: 1, x2: 33, y1: 5, y2: 5, "stroke-width": 2.5, "stroke-dasharray": curve.dash || null, style: `stroke:var(--c${curve.colour})` }));

function chartLegend(figure, spec, off) {
  const buttons = spec.curves.map((curve) => element("button", {
    type: "button", "aria-pressed": String(!off.has(curve.name)),
    onclick: () => {
      if (!off.delete(curve.name)) off.add(curve.name);
      lineChart(figure, spec);
      figure.querySelectorAll(".legend button")[spec.curves.indexOf(curve)].focus();
    },
  }, swatch(curve), curve.name));
  const status = element("span", { class: "copy-status", role: "status" });
  const copy = element("button", { type: "button", class: "tool", onclick: () => copyText(chartCsv(spec), status) }, "Copy values");
  return element("div", { class: "legend" }, buttons, status, copy);
}

function chartCsv(spec) {
  const columns = spec.curves.flatMap((curve) => [[curve.name, curve.mean],
    ...(curve.low ? [[`${curve.name} lowest`, curve.low], [`${curve.name} highest`, curve.high]] : [])]);
  const rows = [["round", ...columns.map(([name]) => name)]];
  for (let round = 0; round < spec.rounds; round += 1) rows.push([round, ...columns.map(([, values]) => values[round] ?? "")]);
  return asCsv(rows);
}

// --- validation accuracy: a panel for each silo, or quantiles where there are many silos

function drawPanels(figure, run) {
  const rounds = Math.max(1, ...run.validation.map((row) => row.length));
  const whole = 200, height = 70, foot = 12;
  const y = percentScale(run.validation.flatMap(withoutNulls), height, 4), x = roundScale(rounds, 0, whole);
  const grid = element("div", { class: "panels", style: `--panel:${run.validation.length > 16 ? "8.5rem" : "12rem"}` });
  const parts = run.validation.map((values, silo) => {
    const svg = svgElement("svg", {
      viewBox: `-26 -4 ${whole + 30} ${height + foot + 8}`, role: "presentation",
      "data-low": y.low, "data-high": y.high, "data-height": height, "data-width": whole, "data-rounds": rounds,
    });
    const pattern = addHatchPattern(svg);
    for (const tick of [y.low, y.high]) {
      svg.append(svgElement("line", { class: "grid", x1: 0, x2: whole, y1: y.at(tick), y2: y.at(tick) }),
        svgElement("text", { x: -5, y: y.at(tick) + 4, "text-anchor": "end" }, String(rounded(tick))));
    }
    svg.append(svgElement("path", { class: "curve", "data-silo": silo, style: `stroke:var(--ink);stroke-width:${rounds < 2 ? 6 : 1.6}`, d: linePath(values, x.at, y.at) }));
    for (const [start, end, state] of (run.strip.bars || [])[silo] || []) {
      svg.append(stateBar(state, x.edge(start), height + 5, x.edge(end) - x.edge(start), 7, pattern));
    }
    const cross = svgElement("line", { class: "cross", y1: 0, y2: height + foot, visibility: "hidden" });
    svg.append(cross);
    const figures = element("b", {}, formatPercent(withoutNulls(values).at(-1) ?? null));
    grid.append(element("div", { class: "panel" }, element("p", {}, element("span", { title: run.silos[silo] }, run.silos[silo]), figures), svg));
    return { svg, cross, figures, values };
  });
  const where = element("li", { class: "where" }, "figures: at the end");
  const go = addMarker(figure, grid, rounds, "validation accuracy of each silo", (event) => {
    const part = parts.find(({ svg }) => svg.parentElement.contains(event.target));
    if (!part) return null;
    const box = part.svg.getBoundingClientRect();
    return x.nearest((event.clientX - box.left) / box.width * (whole + 30) - 26);
  }, (round) => {
    for (const { cross, figures, values } of parts) {
      cross.setAttribute("visibility", round < 0 ? "hidden" : "visible");
      if (round >= 0) extend(cross, { x1: x.at(round), x2: x.at(round) }, []);
      figures.textContent = formatPercent(round < 0 ? withoutNulls(values).at(-1) ?? null : values[round] ?? null);
    }
    where.textContent = `figures: ${round < 0 ? "at the end" : `round ${round}`}`;
    return round < 0 ? "" : `round ${round}: ${parts.map(({ values }, silo) => `${run.silos[silo]} ${formatPercent(values[round] ?? null)}`).join(", ")}`;
  });
  const key = stripLegend([run.strip]);
  key.append(where);
  replaceDrawing(figure, go, grid, key);
}

function drawQuantiles(figure, run) {
  const [lowest, low, mean, high, highest] = run.ribbon;
  lineChart(figure, {
    label: "validation accuracy", rounds: mean.length, strip: run.strip,
    curves: [{ name: "median silo", colour: 0, dash: "", mean, low, high, lowest, highest }],
  });
}

// --- the marker, moved by pointer or keys

const markers = new WeakMap();

// replaces the drawing of a figure and keeps its marker and focus
function replaceDrawing(figure, go, ...parts) {
  const reachable = () => [...figure.querySelectorAll("button, [tabindex]")];
  const marked = markers.get(figure), focused = reachable().indexOf(document.activeElement);
  figure.replaceChildren(...parts);
  if (focused >= 0) reachable()[focused]?.focus({ preventScroll: true });
  if (marked !== undefined) go(marked);
}

function addMarker(figure, plot, rounds, label, roundAt, show) {
  let current = -1;
  const go = (wanted) => {
    current = Math.min(rounds - 1, Math.max(0, wanted));
    markers.set(figure, current);
    plot.setAttribute("aria-valuenow", current);
    plot.setAttribute("aria-valuetext", show(current));
  };
  const stop = () => {
    if (!plot.isConnected) return;  // a new drawing has replaced this one and taken over its marker
    current = -1;
    markers.delete(figure);
    show(-1);
  };
  extend(plot, {
    tabindex: 0, role: "slider", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": rounds - 1,
    "aria-valuenow": rounds - 1, "aria-valuetext": "arrow keys move over rounds",
    onpointermove: (event) => { const round = roundAt(event); if (round !== null && round !== current) go(round); },
    onpointerleave: stop,
    onblur: stop,
    onkeydown: (event) => {
      const start = current < 0 ? (event.key === "ArrowRight" ? -1 : rounds) : current;
      const jump = Math.max(1, Math.round(rounds / 10));
      const target = { ArrowLeft: start - 1, ArrowDown: start - 1, ArrowRight: start + 1, ArrowUp: start + 1,
        PageDown: start - jump, PageUp: start + jump, Home: 0, End: rounds - 1 }[event.key];
      if (event.key === "Escape") stop();
      else if (target !== undefined) { event.preventDefault(); go(target); }
    },
  }, []);
  return go;
}
