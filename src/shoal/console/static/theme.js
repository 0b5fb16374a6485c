// Dark or light: as the system says, until a person says otherwise. Runs before the page is drawn.
"use strict";
((S) => {
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let told = null;
  try {
    told = localStorage.getItem("shoal-theme");
  } catch {
    // Storage is closed to this page: the choice lasts as long as the page.
  }
  const show = () => {
    root.dataset.theme = S.theme();
    dispatchEvent(new Event("shoal-theme"));
  };
  S.theme = () => told || (dark.matches ? "dark" : "light");
  S.switchTheme = () => {
    told = S.theme() === "dark" ? "light" : "dark";
    try {
      localStorage.setItem("shoal-theme", told);
    } catch {
      // As above.
    }
    show();
  };
  dark.addEventListener("change", show);
  show();
})((window.Shoal ??= {}));
