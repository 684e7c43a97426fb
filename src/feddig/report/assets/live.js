// Keeps a page of `feddig watch` up to date: asks the server for its state, and changes only what is different.

const POLL_MS = 1000, SLOW_POLL_MS = 4000, TIMEOUT_MS = 20000;
let shownVersion = null;
let lastState = null;    // the server's last answer, and when it came
let timer = null;

// --- the line that shows the state

const stateText = document.createElement("span"), ageText = document.createElement("span");
const stateLine = document.createElement("p");
stateLine.className = "live";
stateText.setAttribute("role", "status");
stateLine.append(stateText, ageText);
document.querySelector("header").append(stateLine);

const formatSeconds = (seconds) => seconds < 90 ? `${Math.floor(seconds)} s`
  : seconds < 5400 ? `${Math.round(seconds / 60)} min`
    : seconds < 129600 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86400)} days`;

function showState(state, message) {
  stateLine.dataset.state = state;
  if (stateText.textContent !== message) stateText.textContent = message;
}

function showAge() {
  const isKnown = lastState && lastState.age !== null;
  ageText.textContent = isKnown ? `, updated ${formatSeconds(lastState.age + (performance.now() - lastState.receivedAt) / 1000)} ago` : "";
}

// --- new content: an element that is kept also keeps its focus, scroll position and folds

const keyOf = (node) => node.dataset?.key;
const isAlike = (one, two) => one.nodeType === two.nodeType && one.nodeName === two.nodeName && keyOf(one) === keyOf(two);
// what the reader has changed, the server must not change back
const isReaders = (element, name) => (name === "open" && element.tagName === "DETAILS")
  || (name === "aria-sort" && element.tagName === "TH") || (name === "data-drawn" && element.dataset.chart);

function updateNode(old, fresh) {
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
  // charts are drawn from their numbers, and "copied" disappears by itself
  if (!fresh.dataset.chart && !fresh.classList.contains("copy-status")) updateChildren(old, fresh);
}

function updateChildren(old, fresh) {
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
    updateNode(own, part);
  }
  while (next) {
    const last = next;
    next = next.nextSibling;
    last.remove();
  }
}

function updatePage(page) {
  const fresh = new DOMParser().parseFromString(page, "text/html");
  document.title = fresh.title;
  for (const part of [".about", "#data", "#main"]) updateNode(document.querySelector(part), fresh.querySelector(part));
  feddig.draw();
  feddig.sort();
}

// --- requests

class RequestError extends Error {}

async function request(address) {
  let answer;
  try {
    answer = await fetch(address, { cache: "no-store", signal: AbortSignal.timeout(TIMEOUT_MS) });
  } catch {
    throw new RequestError("feddig watch does not answer: this is the last known state");
  }
  if (!answer.ok) throw new RequestError((await answer.text()).trim());
  return answer;
}

async function poll() {
  let wait = SLOW_POLL_MS;
  try {
    const state = await (await request("state")).json();
    if (state.version !== shownVersion) {
      const answer = await request("./");
      updatePage(await answer.text());
      shownVersion = answer.headers.get("ETag").replaceAll('"', "");
    }
    lastState = { ...state, receivedAt: performance.now() };
    showState(state.state, state.message);
    if (state.state !== "ended") wait = POLL_MS;
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    showState("gone", error.message);
  } finally {
    showAge();
    clearTimeout(timer);
    timer = setTimeout(poll, wait);
  }
}

setInterval(showAge, POLL_MS);
// browsers run timers of hidden pages rarely; a page that is shown again should be up to date
document.addEventListener("visibilitychange", () => { if (!document.hidden) poll(); });
poll();
