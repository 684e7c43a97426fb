// Moves a marker over the rounds of a figure, by pointer or keys.

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
