// Draws a panel for each silo, or a ribbon of quantiles where silos are many.

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
