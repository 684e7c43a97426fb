// Draws points: accuracy against a record's epsilon, and against the seconds that the moderator spent.

const TEXT_GAP = 14;

function drawEpsilons(figure, group) {
  const known = group.epsilons.flatMap((series) => series.points.filter((point) => point.x !== null).map((point) => point.x));
  const low = Math.log(Math.min(...known)), high = Math.log(Math.max(...known));
  const without = group.epsilons.some((series) => series.points.some((point) => point.x === null));
  // an infinite epsilon has a place of its own behind the others
  const end = without ? 1 - Math.max(0.16, 80 / (figure.clientWidth || 280)) : 1;
  const share = (x) => x === null ? 1 : (Math.log(x) - low) / (high - low) * end;
  const ticks = [...new Set(known)].sort((a, b) => a - b).map((x) => ({ share: share(x), text: String(x) }));
  if (without) ticks.push({ share: 1, text: "no noise" });
  pointChart(figure, {
    label: `${group.measured} accuracy at the end`, across: "epsilon of a record (logarithmic)", ticks,
    series: group.epsilons.map((series) => ({
      ...series, joined: true,
      points: series.points.map((point) => ({
        ...point, share: share(point.x), apart: point.x === null,
        says: `${series.name}, ${point.x === null ? "no noise" : `epsilon ${point.x}`}: ${formatRange(point)}`,
      })),
    })),
  });
}

function drawCosts(figure, group) {
  const most = Math.max(...group.costs.map((curve) => curve.seconds_high), 1e-9);
  const step = niceStep(most, 5), end = Math.ceil(most / step) * step;
  const ticks = [];
  for (let x = 0; x <= end + step / 1000; x += step) ticks.push({ share: x / end, text: String(rounded(x)) });
  pointChart(figure, {
    label: `${group.measured} accuracy at the end`, across: "the moderator's own seconds in the whole run", ticks,
    series: group.costs.map((curve) => ({
      ...curve, names: true,
      points: [{ ...curve, share: curve.seconds / end, from: curve.seconds_low / end, to: curve.seconds_high / end,
        says: `${curve.name}: ${formatRange(curve)} after ${curve.seconds.toFixed(1)} s` }],
    })),
  });
}

const formatRange = ({ mean, low, high }) => formatPercent(mean) + (high > low ? ` (${low.toFixed(1)}–${high.toFixed(1)})` : "");

function pointChart(figure, spec) {
  const whole = Math.max(figure.clientWidth || 0, 280), top = 34, left = 44, right = 30;
  const height = Math.round(Math.min(260, Math.max(170, whole * 0.3))), width = whole - left - right, bottom = top + height;
  const points = spec.series.flatMap((series) => series.points);
  const y = percentScale(points.flatMap((point) => [point.low, point.high]), height, 4), at = (value) => top + y.at(value);
  const x = (share) => rounded(left + share * width);
  const svg = svgElement("svg", {
    viewBox: `0 0 ${whole} ${bottom + 40}`, role: "img", "aria-label": points.map((point) => point.says).join("; "),
  });
  svg.append(svgElement("text", { x: left, y: 11 }, `${spec.label} (%)`),
    svgElement("text", { x: left + width, y: bottom + 36, "text-anchor": "end" }, spec.across));
  for (const tick of y.ticks) {
    svg.append(svgElement("line", { class: "grid", x1: left, x2: left + width, y1: at(tick), y2: at(tick) }),
      svgElement("text", { x: left - 8, y: at(tick) + 4, "text-anchor": "end" }, String(rounded(tick))));
  }
  let written = -Infinity;
  for (const { share, text } of spec.ticks) {
    if (x(share) - written < textWidth(text) / 2 + 4) continue;
    svg.append(svgElement("text", { x: x(share), y: bottom + 17, "text-anchor": "middle" }, text));
    written = x(share) + textWidth(text) / 2;
  }
  const spots = [];
  for (const series of spec.series) {
    const paint = `var(--c${series.colour})`, line = series.joined ? series.points.filter((point) => !point.apart) : [];
    if (line.some((point) => point.high > point.low)) {
      svg.append(svgElement("path", { class: "band", style: `fill:${paint}`,
        d: bandPath(line.map((point) => point.low), line.map((point) => point.high), (place) => x(line[place].share), at) }));
    }
    if (line.length) {
      svg.append(svgElement("path", { class: "curve", "stroke-dasharray": series.dash || null, style: `stroke:${paint}`,
        d: linePath(line.map((point) => point.mean), (place) => x(line[place].share), at) }));
    }
    for (const point of series.points) {
      if (!line.includes(point)) {
        svg.append(svgElement("path", { class: "curve", style: `stroke:${paint};stroke-width:1.2`,
          d: `M${x(point.share)} ${at(point.low)}V${at(point.high)}M${x(point.from ?? point.share)} ${at(point.mean)}H${x(point.to ?? point.share)}` }));
      }
      svg.append(svgElement("circle", { "data-point": series.name, "data-value": point.mean, cx: x(point.share), cy: rounded(at(point.mean)), r: 4.5,
        style: `fill:${paint};stroke:var(--paper)` }, svgElement("title", {}, point.says)));
    }
    if (series.names) spots.push({ series, point: series.points[0] });
  }
  placeNames(svg, spots, x, at, left + width);
  figure.replaceChildren(...(spots.length ? [] : [seriesLegend(spec.series)]), element("div", { class: "plot" }, svg));
}

// writes the name beside its point, to the left where there is no room, and below a name that is in the way
function placeNames(svg, spots, x, at, edge) {
  const placed = [];
  for (const { series, point } of spots.sort((a, b) => b.point.mean - a.point.mean)) {
    const whole = `${series.name} ${point.mean.toFixed(1)}`, before = x(point.share) - 9, behind = edge + 30 - x(point.share) - 9;
    const isLeft = textWidth(whole) > behind && before > behind;
    // where neither side has room, the end of the name and its value are written
    const letters = Math.floor((isLeft ? before : behind) / textWidth("m"));
    const text = whole.length > letters ? `…${whole.slice(1 - letters)}` : whole, long = textWidth(text);
    const from = isLeft ? x(point.share) - 9 - long : x(point.share) + 9;
    // above the line from the lowest to the highest seconds
    let y = at(point.mean) - (point.to > point.from ? 5 : -4);
    for (const other of placed) if (from < other.to && from + long > other.from && y < other.y + TEXT_GAP) y = other.y + TEXT_GAP;
    placed.push({ from, to: from + long, y });
    svg.append(svgElement("text", { class: "label", x: isLeft ? from + long : from, y, "text-anchor": isLeft ? "end" : null,
      style: `fill:var(--c${series.colour})` }, text));
  }
}

function seriesLegend(series) {
  return element("div", { class: "legend" }, series.map((each) => element("span", { class: "entry" }, swatch(each), each.name)));
}
