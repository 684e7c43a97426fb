// Draws accuracy over rounds, with the absence strip under it.

const DASHES = ["", "7 4", "2 4", "9 4 2 4"];
const hidden = new WeakMap();

function lineChart(figure, spec) {
  const off = hidden.get(figure) || hidden.set(figure, new Set()).get(figure);
  const shown = spec.curves.filter((curve) => !off.has(curve.name));
  const whole = Math.max(figure.clientWidth || 0, 280);
  const roomy = whole >= 560;
  const names = roomy ? shown.map((curve) => `${curve.name} ${(known(curve.mean).at(-1) ?? 0).toFixed(1)}`) : [];
  const right = roomy ? Math.min(200, Math.max(20, ...names.map(textWidth)) + 14) : 12;
  const rows = spec.strip.bars && rowHeight(spec.strip.silos) >= 10;
  const longest = rows ? Math.max(0, ...spec.strip.names.map((name) => name.length * 6.2)) : 0;
  const left = Math.min(roomy ? 130 : 84, Math.max(44, longest + 10));
  const width = whole - left - right, top = 22;
  const height = Math.round(Math.min(340, Math.max(190, whole * 0.36)));
  const under = stripHeight(spec.strip), gap = under ? 12 : 0, bottom = top + height + gap + under;
  const every = [...spec.curves.flatMap((curve) => [curve.mean, curve.low, curve.high, curve.lowest, curve.highest])];
  const y = percentScale(every.flatMap(known), height, 5), at = (value) => top + y.at(value);
  const x = roundScale(spec.rounds, left, width);
  const svg = draw("svg", {
    viewBox: `0 0 ${whole} ${bottom + 24}`, role: "presentation",
    "data-low": y.low, "data-high": y.high, "data-top": top, "data-height": height, "data-left": left, "data-width": width,
    "data-rounds": spec.rounds,
  });
  const pattern = hatch(svg);

  svg.append(draw("text", { x: left, y: 11 }, `${spec.label} (%)`));
  for (const tick of y.ticks) {
    svg.append(draw("line", { class: "grid", x1: left, x2: left + width, y1: at(tick), y2: at(tick) }),
      draw("text", { x: left - 8, y: at(tick) + 4, "text-anchor": "end" }, String(short(tick))));
  }
  for (const round of leaves(spec.strip)) {
    const place = x.edge(round);
    svg.append(draw("line", { class: "event", x1: place, x2: place, y1: top, y2: bottom }));
  }
  const step = Math.max(1, niceStep(spec.rounds, Math.max(4, width / 90)));
  for (let round = 0; round < spec.rounds; round += step) {
    svg.append(draw("text", { x: x.at(round), y: bottom + 17, "text-anchor": "middle" }, String(round)));
  }
  svg.append(draw("text", { x: left - 14, y: bottom + 17, "text-anchor": "end" }, "round"));

  for (const curve of shown) {
    const paint = `fill:var(--c${curve.colour})`;
    if (curve.lowest) svg.append(draw("path", { class: "band outer", style: paint, d: area(curve.lowest, curve.highest, x.at, at) }));
    if (curve.low) svg.append(draw("path", { class: "band", style: paint, d: area(curve.low, curve.high, x.at, at) }));
  }
  for (const curve of shown) {
    svg.append(draw("path", {
      class: "curve", "data-curve": curve.name, "stroke-dasharray": DASHES[curve.dash] || null,
      style: `stroke:var(--c${curve.colour})${spec.rounds < 2 ? ";stroke-width:8" : ""}`, d: trace(curve.mean, x.at, at),
    }));
  }
  if (roomy) placeLabels(svg, shown, names, left + width + 8, at, top, height);
  if (under) drawStrip(svg, spec.strip, x, left, top + height + gap, pattern);

  const cross = draw("line", { class: "cross", y1: top, y2: bottom, visibility: "hidden" });
  const dots = shown.map((curve) => draw("circle", { r: 3.5, visibility: "hidden", style: `fill:var(--c${curve.colour});stroke:var(--paper);stroke-width:1.5` }));
  svg.append(cross, ...dots);
  const tip = put("div", { class: "tip", hidden: true });
  const plot = put("div", { class: "plot" }, svg, tip);

  const show = (round) => {
    tip.hidden = round < 0;
    cross.setAttribute("visibility", round < 0 ? "hidden" : "visible");
    dots.forEach((dot) => dot.setAttribute("visibility", "hidden"));
    if (round < 0) return "";
    const place = x.at(round);
    fill(cross, { x1: place, x2: place }, []);
    const values = shown.map((curve, number) => ({ curve, dot: dots[number], value: curve.mean[round] ?? null }));
    for (const { dot, value } of values) {
      if (value !== null) fill(dot, { cx: place, cy: at(value), visibility: "visible" }, []);
    }
    const sorted = values.filter((each) => each.value !== null).sort((a, b) => b.value - a.value);
    const range = (curve) => curve.low ? ` (${curve.low[round].toFixed(1)}–${curve.high[round].toFixed(1)})` : "";
    const who = under ? sayCounts(spec.strip, round) : "";
    tip.replaceChildren(put("div", {}, put("b", {}, `round ${round}`)),
      ...sorted.map(({ curve, value }) => put("div", {}, put("i", { style: `background:var(--c${curve.colour})` }),
        put("span", {}, curve.name), put("b", {}, percent(value) + range(curve)))),
      ...(who ? [put("div", {}, put("span", {}, who))] : []));
    const scale = plot.clientWidth / whole, wide = tip.offsetWidth;
    tip.style.left = `${place * scale + wide + 24 > plot.clientWidth ? Math.max(0, place * scale - wide - 12) : place * scale + 12}px`;
    tip.style.top = `${top}px`;
    return `round ${round}: ${sorted.map(({ curve, value }) => `${curve.name} ${percent(value)}`).join(", ")}. ${who}`;
  };
  const done = Math.max(1, ...spec.curves.map((curve) => curve.mean.length));
  const go = track(figure, plot, done, spec.label, (event) => {
    const box = svg.getBoundingClientRect();
    return Math.min(done - 1, x.nearest((event.clientX - box.left) / box.width * whole));
  }, show);
  renew(figure, go, chartLegend(figure, spec, off), plot, under ? stripKey([spec.strip]) : "");
}

function placeLabels(svg, curves, names, x, at, top, height) {
  const spots = curves.map((curve, number) => ({ curve, name: names[number], y: at(known(curve.mean).at(-1) ?? 0) }))
    .filter(({ curve }) => known(curve.mean).length).sort((a, b) => a.y - b.y);
  spots.forEach((spot, place) => { if (place) spot.y = Math.max(spot.y, spots[place - 1].y + 15); });
  const over = spots.length ? Math.max(0, spots.at(-1).y - (top + height)) : 0;
  for (const { curve, name, y } of spots) {
    const cut = name.length > 29 ? `${name.slice(0, 22)}… ${name.split(" ").at(-1)}` : name;
    svg.append(draw("text", { class: "label", x, y: y - over + 4, style: `fill:var(--c${curve.colour})` }, cut));
  }
}

function chartLegend(figure, spec, off) {
  const swatch = (curve) => draw("svg", { viewBox: "0 0 26 10", "aria-hidden": "true" }, draw("line",
    { x1: 1, x2: 25, y1: 5, y2: 5, "stroke-width": 2.5, "stroke-dasharray": DASHES[curve.dash] || null, style: `stroke:var(--c${curve.colour})` }));
  const buttons = spec.curves.map((curve) => put("button", {
    type: "button", "aria-pressed": String(!off.has(curve.name)),
    onclick: () => {
      if (!off.delete(curve.name)) off.add(curve.name);
      lineChart(figure, spec);
      figure.querySelectorAll(".legend button")[spec.curves.indexOf(curve)].focus();
    },
  }, swatch(curve), curve.name));
  const said = put("span", { class: "said", role: "status" });
  const copy = put("button", { type: "button", class: "tool", onclick: () => copyText(chartCsv(spec), said) }, "Copy values");
  return put("div", { class: "legend" }, buttons, said, copy);
}

function chartCsv(spec) {
  const columns = spec.curves.flatMap((curve) => [[curve.name, curve.mean],
    ...(curve.low ? [[`${curve.name} lowest`, curve.low], [`${curve.name} highest`, curve.high]] : [])]);
  const rows = [["round", ...columns.map(([name]) => name)]];
  for (let round = 0; round < spec.rounds; round += 1) rows.push([round, ...columns.map(([, values]) => values[round] ?? "")]);
  return asCsv(rows);
}
