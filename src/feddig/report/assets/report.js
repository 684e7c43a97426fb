// Draws the charts of a report from its JSON block, and makes its tables sort and copy. No library, no network.
(() => {
  "use strict";
  const SPACE = "http://www.w3.org/2000/svg";
  const STATES = ["not-yet", "here", "recalled", "away"];
  const SPOKEN = ["not joined yet", "here", "away, recalled", "away"];
  const PAPER = "730px";
  const DASHES = ["", "7 4", "2 4", "9 4 2 4"];
  let data = { groups: [], runs: [] };

  // --- making elements: names go in as text only, so that none can become markup

  const put = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
  const draw = (tag, attributes = {}, ...children) => fill(document.createElementNS(SPACE, tag), attributes, children);

  function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
      if (value === null || value === undefined || value === false) continue;
      if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
      else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat().filter((child) => child !== null && child !== undefined));
    return element;
  }

  // --- scales

  const known = (values) => (values || []).filter((value) => value !== null);

  function niceStep(span, wanted) {
    const rough = span / wanted || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
  }

  function percentScale(values, height, wanted) {
    let low = Math.min(...values), high = Math.max(...values);
    if (!values.length) [low, high] = [0, 100];
    // a level curve lies in the middle, and hundredths of a percent do not look like mountains
    if (high - low < 2) [low, high] = [Math.max(0, (low + high) / 2 - 1), (low + high) / 2 + 1];
    const step = niceStep(high - low, wanted);
    low = Math.max(0, Math.floor(low / step) * step);
    high = Math.max(low + step, Math.min(Math.max(100, high), Math.ceil(high / step) * step));
    const ticks = [];
    for (let at = low; at <= high + step / 1000; at += step) ticks.push(at);
    return { low, high, ticks, at: (value) => height - (value - low) / (high - low) * height };
  }

  function roundScale(rounds, left, width) {
    const last = Math.max(rounds - 1, 1);
    return {
      at: (round) => rounds < 2 ? left + width / 2 : left + round / last * width,
      edge: (round) => rounds < 2 ? left + round * width
        : Math.min(left + width, Math.max(left, left + (round - 0.5) / last * width)),
      nearest: (x) => Math.min(rounds - 1, Math.max(0, Math.round((x - left) / width * last))),
    };
  }

  const short = (number) => Math.round(number * 100) / 100;

  // a curve with gaps where nothing was measured
  function trace(values, x, y) {
    let path = "", pen = false;
    values.forEach((value, round) => {
      if (value === null) { pen = false; return; }
      const alone = !pen && (values[round + 1] === null || values[round + 1] === undefined);
      path += `${pen ? "L" : "M"}${short(x(round))} ${short(y(value))}${alone ? "h.01" : ""}`;
      pen = true;
    });
    return path;
  }

  function area(low, high, x, y) {
    const rounds = high.map((_, round) => round).filter((round) => high[round] !== null && low[round] !== null);
    if (!rounds.length) return "";
    const upper = rounds.map((round) => `${short(x(round))} ${short(y(high[round]))}`);
    const lower = rounds.reverse().map((round) => `${short(x(round))} ${short(y(low[round]))}`);
    return `M${upper.concat(lower).join("L")}Z`;
  }

  const percent = (value) => value === null || value === undefined ? "–" : `${value.toFixed(1)} %`;
  const textWidth = (text) => text.length * 7.2;

  // --- the absence strip

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

  // --- moving a marker over rounds, by pointer or keys

  const markers = new WeakMap();

  // puts a new drawing into its figure; marker and focus stay where they were in the one before it
  function renew(figure, go, ...parts) {
    const reachable = () => [...figure.querySelectorAll("button, [tabindex]")];
    const marked = markers.get(figure), focused = reachable().indexOf(document.activeElement);
    figure.replaceChildren(...parts);
    if (focused >= 0) reachable()[focused]?.focus({ preventScroll: true });
    if (marked !== undefined) go(marked);
  }

  function track(figure, plot, rounds, label, roundAt, show) {
    let current = -1;
    const go = (wanted) => {
      current = Math.min(rounds - 1, Math.max(0, wanted));
      markers.set(figure, current);
      plot.setAttribute("aria-valuenow", current);
      plot.setAttribute("aria-valuetext", show(current));
    };
    const stop = () => {
      if (!plot.isConnected) return;  // another drawing has taken its place, and the marker over
      current = -1;
      markers.delete(figure);
      show(-1);
    };
    fill(plot, {
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

  // --- accuracy over rounds, with the strip under it

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

  // --- a panel for each silo

  function panels(figure, run) {
    const rounds = Math.max(1, ...run.validation.map((row) => row.length));
    const whole = 200, height = 70, foot = 12;
    const y = percentScale(run.validation.flatMap(known), height, 4), x = roundScale(rounds, 0, whole);
    const grid = put("div", { class: "panels", style: `--panel:${run.validation.length > 16 ? "8.5rem" : "12rem"}` });
    const parts = run.validation.map((values, silo) => {
      const svg = draw("svg", {
        viewBox: `-26 -4 ${whole + 30} ${height + foot + 8}`, role: "presentation",
        "data-low": y.low, "data-high": y.high, "data-height": height, "data-width": whole, "data-rounds": rounds,
      });
      const pattern = hatch(svg);
      for (const tick of [y.low, y.high]) {
        svg.append(draw("line", { class: "grid", x1: 0, x2: whole, y1: y.at(tick), y2: y.at(tick) }),
          draw("text", { x: -5, y: y.at(tick) + 4, "text-anchor": "end" }, String(short(tick))));
      }
      svg.append(draw("path", { class: "curve", "data-silo": silo, style: `stroke:var(--ink);stroke-width:${rounds < 2 ? 6 : 1.6}`, d: trace(values, x.at, y.at) }));
      for (const [start, end, state] of (run.strip.bars || [])[silo] || []) {
        svg.append(bar(state, x.edge(start), height + 5, x.edge(end) - x.edge(start), 7, pattern));
      }
      const cross = draw("line", { class: "cross", y1: 0, y2: height + foot, visibility: "hidden" });
      svg.append(cross);
      const figures = put("b", {}, percent(known(values).at(-1) ?? null));
      grid.append(put("div", { class: "panel" }, put("p", {}, put("span", { title: run.silos[silo] }, run.silos[silo]), figures), svg));
      return { svg, cross, figures, values };
    });
    const where = put("li", { class: "where" }, "figures: at the end");
    const go = track(figure, grid, rounds, "validation accuracy of each silo", (event) => {
      const part = parts.find(({ svg }) => svg.parentElement.contains(event.target));
      if (!part) return null;
      const box = part.svg.getBoundingClientRect();
      return x.nearest((event.clientX - box.left) / box.width * (whole + 30) - 26);
    }, (round) => {
      for (const { cross, figures, values } of parts) {
        cross.setAttribute("visibility", round < 0 ? "hidden" : "visible");
        if (round >= 0) fill(cross, { x1: x.at(round), x2: x.at(round) }, []);
        figures.textContent = percent(round < 0 ? known(values).at(-1) ?? null : values[round] ?? null);
      }
      where.textContent = `figures: ${round < 0 ? "at the end" : `round ${round}`}`;
      return round < 0 ? "" : `round ${round}: ${parts.map(({ values }, silo) => `${run.silos[silo]} ${percent(values[round] ?? null)}`).join(", ")}`;
    });
    const key = stripKey([run.strip]);
    key.append(where);
    renew(figure, go, grid, key);
  }

  function ribbon(figure, run) {
    const [lowest, low, mean, high, highest] = run.ribbon;
    lineChart(figure, {
      label: "validation accuracy", rounds: mean.length, strip: run.strip,
      curves: [{ name: "median silo", colour: 0, dash: 0, mean, low, high, lowest, highest }],
    });
  }

  // --- drawing what is to be seen

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
    watcher.disconnect();
    for (const figure of document.querySelectorAll("figure[data-chart]")) {
      const numbers = JSON.stringify([figure.dataset.chart, numbersOf(figure)]);
      if (drawnFrom.get(figure) !== numbers) delete figure.dataset.drawn;
      drawnFrom.set(figure, numbers);
      if (!figure.dataset.drawn && !isFolded(figure)) drawFigure(figure);
      watcher.observe(figure);
    }
  }

  // --- tables

  const cellText = (cell) => cell.textContent.trim();

  function sortBy(table, column) {
    const heads = [...table.tHead.rows[0].cells], head = heads[column];
    const before = head.getAttribute("aria-sort");
    // figures: the largest first; words: from A on
    const down = before ? before === "ascending" : head.classList.contains("number");
    heads.forEach((each) => each.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    putInOrder(table, head, down);
  }

  function putInOrder(table, head, down) {
    const body = table.tBodies[0], column = head.cellIndex, numeric = head.classList.contains("number");
    const value = (row) => numeric ? row.cells[column].dataset.value : cellText(row.cells[column]);
    const rows = [...body.rows].sort((a, b) => {
      const [one, two] = [value(a), value(b)];
      if (one === "" || two === "") return (one === "") - (two === "");  // what is not known stays at the end
      const order = numeric ? Number(one) - Number(two) : one.localeCompare(two, "en", { numeric: true });
      return down ? -order : order;
    });
    body.append(...rows);
  }

  // rows that came later take their places among those that were sorted
  function sortAgain() {
    for (const head of document.querySelectorAll("th[aria-sort]")) {
      putInOrder(head.closest("table"), head, head.getAttribute("aria-sort") === "descending");
    }
  }

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

  // --- light and dark

  function setUpTheme() {
    const root = document.documentElement, button = document.getElementById("theme");
    const system = matchMedia("(prefers-color-scheme: dark)");
    const isDark = () => (root.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
    const name = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", `switch to ${isDark() ? "light" : "dark"}`); };
    try { if (["light", "dark"].includes(localStorage.getItem("feddig-theme"))) root.dataset.theme = localStorage.getItem("feddig-theme"); } catch { /* no storage: the system decides */ }
    button.addEventListener("click", () => {
      root.dataset.theme = isDark() ? "light" : "dark";
      try { localStorage.setItem("feddig-theme", root.dataset.theme); } catch { /* it holds for this page then */ }
      name();
    });
    system.addEventListener("change", name);
    name();
  }

  // --- what is clicked, and what is printed

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
})();
