// Keeps a page that `feddig watch` serves up to date: asks for news, and changes in place only what is different.

const SOON = 1000, LATER = 4000, PATIENCE = 20000;
const state = document.createElement("span"), age = document.createElement("span");
let shown = null;        // the version of what stands on the page
let told = null;         // the server's last answer, and when it came
let timer = null;

// --- the line that says how it stands

const line = document.createElement("p");
line.className = "live";
state.setAttribute("role", "status");
line.append(state, age);
document.querySelector("header").append(line);

const spoken = (seconds) => seconds < 90 ? `${Math.floor(seconds)} s`
  : seconds < 5400 ? `${Math.round(seconds / 60)} min`
    : seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;

function say(kind, words) {
  line.dataset.state = kind;
  if (state.textContent !== words) state.textContent = words;
}

function sayAge() {
  const known = told && told.age !== null;
  age.textContent = known ? `, updated ${spoken(told.age + (performance.now() - told.at) / 1000)} ago` : "";
}

// --- putting new content in place: an element that stays the same element keeps its focus, scroll and folds

const keyOf = (node) => node.dataset?.key;
const isAlike = (one, two) => one.nodeType === two.nodeType && one.nodeName === two.nodeName && keyOf(one) === keyOf(two);
// what the reader has done to an element is not the server's to change
const isReaders = (element, name) => (name === "open" && element.tagName === "DETAILS")
  || (name === "aria-sort" && element.tagName === "TH") || (name === "data-drawn" && element.dataset.chart);

function adapt(old, fresh) {
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name, value } of [...fresh.attributes]) {
    if (!isReaders(old, name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    if (!isReaders(old, name) && !fresh.hasAttribute(name)) old.removeAttribute(name);
  }
  // a chart is drawn from its numbers, and what was said to the reader ends by itself
  if (!fresh.dataset.chart && !fresh.classList.contains("said")) adaptChildren(old, fresh);
}

function adaptChildren(old, fresh) {
  const wanted = new Set([...fresh.children].map(keyOf)), keyed = new Map();
  for (const child of [...old.children]) {
    if (!keyOf(child)) continue;
    if (wanted.has(keyOf(child)) && !keyed.has(keyOf(child))) keyed.set(keyOf(child), child);
    else child.remove();
  }
  let next = old.firstChild;
  for (const part of [...fresh.childNodes]) {
    const key = keyOf(part), own = key ? keyed.get(key) : next;
    if (!own || !isAlike(own, part)) {
      old.insertBefore(document.importNode(part, true), next);
      continue;
    }
    keyed.delete(key);
    if (own === next) next = next.nextSibling;
    else old.insertBefore(own, next);
    adapt(own, part);
  }
  while (next) {
    const last = next;
    next = next.nextSibling;
    last.remove();
  }
}

function take(page) {
  const fresh = new DOMParser().parseFromString(page, "text/html");
  document.title = fresh.title;
  for (const part of [".about", "#data", "#main"]) adapt(document.querySelector(part), fresh.querySelector(part));
  feddig.draw();
  feddig.sort();
}

// --- asking

class Unanswered extends Error {}

async function ask(address) {
  let answer;
  try {
    answer = await fetch(address, { cache: "no-store", signal: AbortSignal.timeout(PATIENCE) });
  } catch {
    throw new Unanswered("feddig watch does not answer: this is what was known last");
  }
  if (!answer.ok) throw new Unanswered((await answer.text()).trim());
  return answer;
}

async function look() {
  let wait = LATER;
  try {
    const news = await (await ask("state")).json();
    if (news.version !== shown) {
      const answer = await ask("./");
      take(await answer.text());
      shown = answer.headers.get("ETag").replaceAll('"', "");
    }
    told = { ...news, at: performance.now() };
    say(news.state, news.says);
    if (news.state !== "ended") wait = SOON;
  } catch (error) {
    if (!(error instanceof Unanswered)) throw error;
    say("gone", error.message);
  } finally {
    sayAge();
    clearTimeout(timer);
    timer = setTimeout(look, wait);
  }
}

setInterval(sayAge, SOON);
// hidden pages are asked for news rarely by their browser; one that is shown again should not be old
document.addEventListener("visibilitychange", () => { if (!document.hidden) look(); });
look();
