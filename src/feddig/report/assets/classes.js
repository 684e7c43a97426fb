// Draws the accuracy of each class over rounds: lines for a few classes, a heat map for more.

function drawClasses(figure, run) {
  if (!run.classes) return;
  if (run.classes.lines) drawClassLines(figure, run);
  else drawHeatMap(figure, run);
}

function drawClassLines(figure, run) {
  const { names, values, left, rounds, dashes } = run.classes;
  lineChart(figure, {
    label: "accuracy of each class", rounds, strip: run.strip,
    curves: names.map((name, number) => ({ name, colour: number, dash: dashes[number], mean: values[number], low: null, high: null, mark: left[number] })),
  });
}

const LEVEL = 2;  // percent: cells that differ by less are drawn in one colour

// the cells of all rows as one path for each colour: thousands of elements would be slow
function heatPaths(values, step, rounds, x, top, height) {
  const paths = new Map();
  values.forEach((row, number) => {
    const levels = row.map((value) => value === null ? null : Math.round(value / LEVEL) * LEVEL);
    for (let start = 0, end; start < levels.length; start = end) {
      for (end = start + 1; end < levels.length && levels[end] === levels[start];) end += 1;
      if (levels[start] === null) continue;
      const from = rounded(x.edge(start * step)), to = rounded(x.edge(Math.min(rounds, end * step)));
      const cells = `M${from} ${top + number * height}H${to}v${height - 1}H${from}Z`;
      paths.set(levels[start], (paths.get(levels[start]) ?? "") + cells);
    }
  });
  return paths;
}

function drawHeatMap(figure, run) {
  const { names, values, holders, left: leaves, step, rounds } = run.classes;
  const whole = Math.max(figure.clientWidth || 0, 280), roomy = whole >= 560;
  const height = names.length <= 12 ? 20 : names.length <= 32 ? 14 : 11, size = `font-size:${Math.min(11.5, height - 1)}px`;
  const named = [...names, ...(run.strip.bars && rowHeight(run.strip.silos) >= 10 ? run.strip.names : [])];
  const left = Math.min(roomy ? 150 : 92, Math.max(44, ...named.map((name) => name.length * 6.2 + 10)));
  const right = 34, width = whole - left - right, top = 22, bottom = top + names.length * height;
  const under = stripHeight(run.strip), gap = under ? 10 : 0, foot = bottom + gap + under;
  const x = roundScale(rounds, left, width);
  const svg = svgElement("svg", { viewBox: `0 0 ${whole} ${foot + 24}`, role: "presentation" });
  const pattern = addHatchPattern(svg), room = Math.floor((left - 8) / 6.2);
  svg.append(svgElement("text", { x: left, y: 11 }, "accuracy of each class"), svgElement("text", { x: whole, y: 11, "text-anchor": "end" }, "%"));

  for (const [level, cells] of heatPaths(values, step, rounds, x, top, height)) {
    svg.append(svgElement("path", { class: "heat-cells", "data-level": level, d: cells, style: `fill:color-mix(in oklab, var(--heat) ${level}%, var(--faint))` }));
  }
  const figures = names.map((name, number) => {
    const y = top + number * height;
    svg.append(svgElement("text", { x: left - 8, y: y + height / 2 + 3.5, "text-anchor": "end", style: size },
      svgElement("title", {}, name), name.length > room ? `${name.slice(0, Math.max(1, room - 1))}…` : name));
    if (withoutNulls(values[number]).length) {
      svg.append(svgElement("rect", { class: "heat-row", x: left, y: y - 0.5, width, height }));
    }
    const figureText = svgElement("text", { class: "row-figure", x: whole, y: y + height / 2 + 3.5, "text-anchor": "end", style: size });
    svg.append(figureText);
    return figureText;
  });
  const dotted = departures(run.strip);
  for (const round of dotted) {
    svg.append(svgElement("line", { class: "event over-heat", x1: x.edge(round), x2: x.edge(round), y1: top, y2: foot }));
  }
  leaves.forEach((round, number) => {
    if (round === null) return;
    svg.append(svgElement("rect", { class: "holder-leaves", "data-class": number, x: rounded(x.edge(round)) - 2, y: top + number * height, width: 4, height: height - 1 }));
  });
  const ticks = Math.max(1, niceStep(rounds, Math.max(4, width / 90)));
  for (let round = 0; round < rounds; round += ticks) {
    svg.append(svgElement("text", { x: x.at(round), y: foot + 17, "text-anchor": "middle" }, String(round)));
  }
  svg.append(svgElement("text", { x: left - 9, y: foot + 17, "text-anchor": "end" }, "round"));
  if (under) drawStrip(svg, run.strip, x, left, bottom + gap, pattern);

  const cross = svgElement("line", { class: "cross", y1: top, y2: foot, visibility: "hidden" });
  svg.append(cross);
  const tip = element("div", { class: "tip", hidden: true }), plot = element("div", { class: "plot" }, svg, tip);
  const where = element("li", { class: "where" });
  const at = (number, round) => values[number][Math.min(values[number].length - 1, Math.floor(round / step))] ?? null;
  const wholePercent = (value) => value === null ? "–" : String(value);
  let pointed = null, shown = -1;
  const show = (round) => {
    shown = round;
    const read = round < 0 ? rounds - 1 : round;
    figures.forEach((each, number) => { each.textContent = wholePercent(at(number, read)); });
    where.textContent = `figures: ${round < 0 ? "last round" : `round ${round}`}`;
    cross.setAttribute("visibility", round < 0 ? "hidden" : "visible");
    tip.hidden = round < 0;
    if (round < 0) return "";
    extend(cross, { x1: x.at(round), x2: x.at(round) }, []);
    const lines = [["b", `round ${round}`]];
    if (pointed !== null) {
      lines.push(["b", `${names[pointed]}: ${wholePercent(at(pointed, round))} %`]);
      if (holders[pointed]) lines.push(["span", holders[pointed] + (leaves[pointed] === null ? "" : `, left at ${leaves[pointed]}`)]);
    }
    if (under) lines.push(["span", describeCounts(run.strip, round)]);
    tip.replaceChildren(...lines.map(([tag, text]) => element("div", {}, element(tag, {}, text))));
    const scale = plot.clientWidth / whole, wide = tip.offsetWidth, place = x.at(round) * scale;
    tip.style.left = `${place + wide + 24 > plot.clientWidth ? Math.max(0, place - wide - 12) : place + 12}px`;
    // below the pointed row, so that the row stays visible
    tip.style.top = `${(top + ((pointed ?? 0) + (pointed === null ? 0 : 1.3)) * height) * scale}px`;
    return `round ${round}: ${names.map((name, number) => `${name} ${wholePercent(at(number, round))} %`).join(", ")}`;
  };
  const go = addMarker(figure, plot, rounds, "accuracy of each class", (event) => {
    const box = svg.getBoundingClientRect(), scale = whole / box.width;
    const row = Math.floor(((event.clientY - box.top) * scale - top) / height), round = x.nearest((event.clientX - box.left) * scale);
    const before = pointed;
    pointed = row >= 0 && row < names.length ? row : null;
    if (pointed !== before && round === shown) show(round);
    return round;
  }, show);
  plot.addEventListener("pointerleave", () => { pointed = null; });
  show(-1);
  const key = stripLegend([run.strip]);
  key.prepend(element("li", {}, "0 %", element("i", { class: "scale" }), "100 %"),
    ...(leaves.some((round) => round !== null) ? [element("li", {}, element("i", { class: "holder-leaves" }), "the silo that held most of the class leaves")] : []));
  if (dotted.length) key.append(element("li", {}, "dotted: a silo leaves"));
  if (step > 1) key.append(element("li", {}, `one column for ${step} rounds`));
  key.append(where);
  replaceDrawing(figure, go, plot, key);
}
