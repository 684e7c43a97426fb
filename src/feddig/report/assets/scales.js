// Scales, and the paths of curves and bands on them.

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
