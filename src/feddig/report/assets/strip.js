// Draws the absence strip: which silos were here in which round, and which were recalled.

const STATE_CLASSES = ["not-yet", "here", "recalled", "away"];
const STATE_NAMES = ["not joined", "here", "away, recalled", "away"];

// turns [length, state, length, state, ...], as the JSON block has it, into [first round, round after the last, state]
function expandStrip(strip) {
  strip.bars = strip.bars && strip.bars.map((row) => {
    const periods = [];
    let start = 0;
    for (let place = 0; place < row.length; place += 2) {
      periods.push([start, start += row[place], row[place + 1]]);
    }
    return periods;
  });
}

let hatches = 0;
function addHatchPattern(svg) {
  const id = `hatch-${++hatches}`;
  svg.append(svgElement("defs", {}, svgElement("pattern",
    { id, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    svgElement("rect", { width: 5, height: 5, style: "fill:var(--paper)" }),
    svgElement("rect", { width: 2.2, height: 5, style: "fill:var(--recalled)" }))));
  return `url(#${id})`;
}

function stateBar(state, x, y, width, height, pattern) {
  const attributes = { x: rounded(x), y: rounded(y), width: rounded(Math.max(width, 0.5)), height: rounded(height), class: STATE_CLASSES[state] };
  if (state === 2) attributes.fill = pattern;
  return svgElement("rect", attributes);
}

const rowHeight = (silos) => silos <= 8 ? 15 : silos <= 20 ? 10 : silos <= 40 ? 6 : 4;
const stripHeight = (strip) => strip.counts ? 64 : strip.silos * rowHeight(strip.silos);

function drawStrip(svg, strip, x, left, top, pattern) {
  if (strip.counts) return drawShares(svg, strip, x, top, pattern);
  const height = rowHeight(strip.silos), gap = height > 5 ? 2 : 0.5;
  strip.bars.forEach((periods, silo) => {
    for (const [start, end, state] of periods) {
      const from = x.edge(start), to = x.edge(end);
      const mark = stateBar(state, from, top + silo * height, to - from, height - gap, pattern);
      mark.dataset.silo = silo;
      svg.append(mark);
    }
    if (height >= 10) {
      const room = Math.floor((left - 8) / 6.2), name = strip.names[silo];
      svg.append(svgElement("text", { x: left - 8, y: top + silo * height + height - 4, "text-anchor": "end" },
        name.length > room ? `${name.slice(0, Math.max(1, room - 1))}…` : name));
    }
  });
  if (height < 10) svg.append(svgElement("text", { x: left - 8, y: top + 10, "text-anchor": "end" }, `${strip.silos} silos`));
}

// for many silos: how many of them are in which state
function drawShares(svg, strip, x, top, pattern) {
  const height = 64, below = strip.counts[0].map(() => 0);
  for (const state of [1, 2, 3, 0]) {
    const counts = strip.counts[state];
    let path = "", back = "";
    counts.forEach((count, round) => {
      const y = (value) => rounded(top + height - value / strip.silos * height);
      const from = rounded(x.edge(round)), to = rounded(x.edge(round + 1));
      path += `${path ? "L" : "M"}${from} ${y(below[round] + count)}L${to} ${y(below[round] + count)}`;
      back = `L${to} ${y(below[round])}L${from} ${y(below[round])}${back}`;
      below[round] += count;
    });
    if (withoutNulls(counts).some((count) => count)) {
      svg.append(svgElement("path", { d: `${path}${back}Z`, class: STATE_CLASSES[state], fill: state === 2 ? pattern : null }));
    }
  }
  svg.append(svgElement("text", { x: x.edge(0) - 8, y: top + 10, "text-anchor": "end" }, String(strip.silos)),
    svgElement("text", { x: x.edge(0) - 8, y: top + 24, "text-anchor": "end" }, "silos"));
}

function stateCounts(strip, round) {
  const counts = [0, 0, 0, 0];
  if (strip.counts) return counts.map((_, state) => strip.counts[state][round] ?? 0);
  for (const periods of strip.bars) {
    for (const [start, end, state] of periods) if (round >= start && round < end) counts[state] += 1;
  }
  return counts;
}

const describeCounts = (strip, round) => [1, 2, 3, 0]
  .map((state) => [stateCounts(strip, round)[state], STATE_NAMES[state]])
  .filter(([count]) => count).map(([count, name]) => `${count} ${name}`).join("; ");

function departures(strip) {
  const rounds = new Set();
  for (const periods of strip.bars || []) {
    periods.forEach(([start, , state], place) => { if (place && state > 1 && periods[place - 1][2] === 1) rounds.add(start); });
  }
  return rounds.size <= 24 ? [...rounds] : [];
}

function stripLegend(strips) {
  const there = new Set();
  for (const strip of strips) {
    if (strip.counts) strip.counts.forEach((counts, state) => { if (counts.some((count) => count)) there.add(state); });
    else strip.bars.flat().forEach((period) => there.add(period[2]));
  }
  return element("ul", { class: "key" }, [1, 2, 3, 0].filter((state) => there.has(state))
    .map((state) => element("li", {}, element("i", { class: `swatch ${STATE_CLASSES[state]}` }), STATE_NAMES[state])));
}
