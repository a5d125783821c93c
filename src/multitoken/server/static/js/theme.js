// Runs before the page is drawn, so that a dark page does not flash white.
(() => {
  const stored = localStorage.getItem("multitoken-theme");
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const apply = (theme) => (document.documentElement.dataset.theme = theme);
  apply(stored ?? (dark.matches ? "dark" : "light"));
  dark.addEventListener("change", () => {
    if (!localStorage.getItem("multitoken-theme")) apply(dark.matches ? "dark" : "light");
  });
})();
