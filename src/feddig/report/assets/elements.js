// Creates elements, scales and paths. Names go in as text only, so that none can become markup.

const SVG = "http://www.w3.org/2000/svg";

const element = (tag, attributes = {}, ...children) => extend(document.createElement(tag), attributes, children);
const svgElement = (tag, attributes = {}, ...children) => extend(document.createElementNS(SVG, tag), attributes, children);

function extend(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const withoutNulls = (values) => (values || []).filter((value) => value !== null);

function niceStep(span, wanted) {
  const rough = span / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * 0.999);
}

function percentScale(values, height, wanted) {
  let low = Math.min(...values), high = Math.max(...values);
  if (!values.length) [low, high] = [0, 100];
  // at least two points high, so that tiny differences look tiny; no accuracy is above 100
  if (high - low < 2) { low = Math.min(98, Math.max(0, (low + high) / 2 - 1)); high = low + 2; }
  const step = niceStep(high - low, wanted);
  low = Math.max(0, Math.floor(low / step) * step);
  high = Math.max(low + step, Math.min(100, Math.ceil(high / step) * step));
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

const rounded = (number) => Math.round(number * 100) / 100;

// the path of a curve, with gaps where nothing was measured
function linePath(values, x, y) {
  let path = "", drawing = false;
  values.forEach((value, round) => {
    if (value === null) { drawing = false; return; }
    const alone = !drawing && (values[round + 1] === null || values[round + 1] === undefined);
    path += `${drawing ? "L" : "M"}${rounded(x(round))} ${rounded(y(value))}${alone ? "h.01" : ""}`;
    drawing = true;
  });
  return path;
}

// the path of the area between two curves
function bandPath(low, high, x, y) {
  const rounds = high.map((_, round) => round).filter((round) => high[round] !== null && low[round] !== null);
  if (!rounds.length) return "";
  const upper = rounds.map((round) => `${rounded(x(round))} ${rounded(y(high[round]))}`);
  const lower = rounds.reverse().map((round) => `${rounded(x(round))} ${rounded(y(low[round]))}`);
  return `M${upper.concat(lower).join("L")}Z`;
}

const formatPercent = (value) => value === null || value === undefined ? "–" : `${value.toFixed(1)} %`;
const textWidth = (text) => text.length * 7.2;
