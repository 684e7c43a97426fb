// Switches between light and dark.

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
