// Draws the absence strip: who was there in which round, and who was recalled.

const STATES = ["not-yet", "here", "recalled", "away"];
const SPOKEN = ["not joined yet", "here", "away, recalled", "away"];

// bars come as lengths and states in turn, for that is short; drawn they have a first round and one after the last
function unfold(strip) {
  strip.bars = strip.bars && strip.bars.map((row) => {
    const stretches = [];
    let start = 0;
    for (let place = 0; place < row.length; place += 2) {
      stretches.push([start, start += row[place], row[place + 1]]);
    }
    return stretches;
  });
}

let hatches = 0;
function hatch(svg) {
  const id = `hatch-${++hatches}`;
  svg.append(draw("defs", {}, draw("pattern",
    { id, width: 5, height: 5, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
    draw("rect", { width: 5, height: 5, style: "fill:var(--paper)" }),
    draw("rect", { width: 2.2, height: 5, style: "fill:var(--recalled)" }))));
  return `url(#${id})`;
}

function bar(state, x, y, width, height, pattern) {
  const spot = { x: short(x), y: short(y), width: short(Math.max(width, 0.5)), height: short(height), class: STATES[state] };
  if (state === 2) spot.fill = pattern;
  return draw("rect", spot);
}

const rowHeight = (silos) => silos <= 8 ? 15 : silos <= 20 ? 10 : silos <= 40 ? 6 : 4;
const stripHeight = (strip) => strip.counts ? 64 : strip.silos * rowHeight(strip.silos);

function drawStrip(svg, strip, x, left, top, pattern) {
  if (strip.counts) return drawShares(svg, strip, x, top, pattern);
  const height = rowHeight(strip.silos), gap = height > 5 ? 2 : 0.5;
  strip.bars.forEach((stretches, silo) => {
    for (const [start, end, state] of stretches) {
      const from = x.edge(start), to = x.edge(end);
      const mark = bar(state, from, top + silo * height, to - from, height - gap, pattern);
      mark.dataset.silo = silo;
      svg.append(mark);
    }
    if (height >= 10) {
      const room = Math.floor((left - 8) / 6.2), name = strip.names[silo];
      svg.append(draw("text", { x: left - 8, y: top + silo * height + height - 4, "text-anchor": "end" },
        name.length > room ? `${name.slice(0, Math.max(1, room - 1))}…` : name));
    }
  });
  if (height < 10) svg.append(draw("text", { x: left - 8, y: top + 10, "text-anchor": "end" }, `${strip.silos} silos`));
}

// many silos: how many of them are in which state
function drawShares(svg, strip, x, top, pattern) {
  const height = 64, below = strip.counts[0].map(() => 0);
  for (const state of [1, 2, 3, 0]) {
    const counts = strip.counts[state];
    let path = "", back = "";
    counts.forEach((count, round) => {
      const y = (value) => short(top + height - value / strip.silos * height);
      const from = short(x.edge(round)), to = short(x.edge(round + 1));
      path += `${path ? "L" : "M"}${from} ${y(below[round] + count)}L${to} ${y(below[round] + count)}`;
      back = `L${to} ${y(below[round])}L${from} ${y(below[round])}${back}`;
      below[round] += count;
    });
    if (known(counts).some((count) => count)) {
      svg.append(draw("path", { d: `${path}${back}Z`, class: STATES[state], fill: state === 2 ? pattern : null }));
    }
  }
  svg.append(draw("text", { x: x.edge(0) - 8, y: top + 10, "text-anchor": "end" }, String(strip.silos)),
    draw("text", { x: x.edge(0) - 8, y: top + 24, "text-anchor": "end" }, "silos"));
}

function stateCounts(strip, round) {
  const counts = [0, 0, 0, 0];
  if (strip.counts) return counts.map((_, state) => strip.counts[state][round] ?? 0);
  for (const stretches of strip.bars) {
    for (const [start, end, state] of stretches) if (round >= start && round < end) counts[state] += 1;
  }
  return counts;
}

const sayCounts = (strip, round) => [1, 2, 3, 0]
  .map((state) => [stateCounts(strip, round)[state], SPOKEN[state]])
  .filter(([count]) => count).map(([count, name]) => `${count} ${name}`).join("; ");

function leaves(strip) {
  const rounds = new Set();
  for (const stretches of strip.bars || []) {
    stretches.forEach(([start, , state], place) => { if (place && state > 1 && stretches[place - 1][2] === 1) rounds.add(start); });
  }
  return rounds.size <= 24 ? [...rounds] : [];
}

function stripKey(strips) {
  const there = new Set();
  for (const strip of strips) {
    if (strip.counts) strip.counts.forEach((counts, state) => { if (counts.some((count) => count)) there.add(state); });
    else strip.bars.flat().forEach((stretch) => there.add(stretch[2]));
  }
  return put("ul", { class: "key" }, [1, 2, 3, 0].filter((state) => there.has(state))
    .map((state) => put("li", {}, put("i", { class: `swatch ${STATES[state]}` }), SPOKEN[state])));
}
