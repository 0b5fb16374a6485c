// The page: which screen, the bars above and below, keys, and a notice when the console does not answer.
"use strict";
((S) => {
  const { html, render, useEffect, useState } = htmPreact;
  const SCREENS = [
    ["cluster", "Cluster", () => S.Cluster],
    ["job", "Job", () => S.Job],
    ["models", "Models", () => S.Models],
    ["simulate", "Simulate", () => S.Simulate],
  ];

  function where() {
    const [screen, id] = location.hash.replace(/^#\//u, "").split("/");
    const found = SCREENS.find(([name]) => name === screen) ?? SCREENS[0];
    try {
      return { screen: found, id: id ? decodeURIComponent(id) : null };
    } catch {
      return { screen: found, id: null };
    }
  }

  const AWAY = {
    away: ["The console does not answer.", "What you see is the last it said. The page goes on by itself when it is back."],
    ended: ["This session has ended.", "Run shoal console again, and open the link that it prints."],
  };

  function Away({ link }) {
    if (!Object.hasOwn(AWAY, link)) return null;
    return html`<div class="away" role="alert"><b>${AWAY[link][0]}</b> ${AWAY[link][1]}</div>`;
  }

  function may(session) {
    if (!session) return "";
    const allow = session.role === "operator" ? (session.allow ?? []) : [];
    return allow.length ? `may change ${S.listed(allow)}` : "read-only";
  }

  function Head({ screen, state }) {
    const [theme, setTheme] = useState(S.theme());
    useEffect(() => {
      const show = () => setTheme(S.theme());
      addEventListener("shoal-theme", show);
      return () => removeEventListener("shoal-theme", show);
    }, []);
    const other = theme === "dark" ? "Light" : "Dark";
    return html`
      <header class="top">
        <a class="skip" href="#main" onClick=${(event) => (event.preventDefault(), document.getElementById("main").focus())}>Skip to the screen</a>
        <span class="brand"><svg viewBox="0 0 24 16" width="24" height="16" aria-hidden="true"><path d="M1 8C6 1 13 1 18 8 13 15 6 15 1 8ZM17 8 23 3V13Z" /><circle cx="6" cy="7" r="1.2" /></svg>Shoal</span>
        <nav aria-label="Screens">${SCREENS.map(([name, word], at) => html`
          <a key=${name} href=${`#/${name}`} aria-current=${name === screen ? "page" : null} title=${`key ${at + 1}`}>${word}</a>`)}</nav>
        <span class="cluster-name">${state && html`cluster <b>${state.cluster.name}</b>`}</span>
        <span class="pill">${may(S.store.session)}</span>
        <button type="button" class="theme" onClick=${S.switchTheme} aria-label=${`Switch to ${other.toLowerCase()} colours`}>${other}</button>
      </header>`;
  }

  function App() {
    const [, again] = useState(0);
    useEffect(() => {
      const turn = () => again((count) => count + 1);
      const unlisten = S.listen(turn);
      addEventListener("hashchange", turn);
      return () => {
        unlisten();
        removeEventListener("hashchange", turn);
      };
    }, []);
    const { screen, id } = where();
    const [name, word, screenOf] = screen;
    const state = S.state();
    useEffect(() => {
      document.title = `${word} – ${state?.cluster.name ?? "Shoal"}`;
    }, [word, state?.cluster.name]);
    useEffect(() => scrollTo(0, 0), [name]);
    useEffect(() => {
      if (state) S.firstViewMs ??= performance.now();
    }, [Boolean(state)]);
    return html`
      <${Head} screen=${name} state=${state} />
      <${Away} link=${S.store.link} />
      <main id="main" tabindex="-1" data-screen=${name} data-seq=${state?.seq}>
        ${S.store.at !== null && html`<p class="then">As it was at ${S.clock(S.store.at)}</p>`}
        ${state ? html`<${screenOf()} key=${name} state=${state} id=${id} />` : S.store.link === "ended" ? null : html`<p class="loading" role="status">Asking the console how the cluster stands …</p>`}
      </main>
      ${state && name !== "simulate" && html`<${S.Replay} />`}
      <footer class="keys-help"><kbd>1</kbd>–<kbd>4</kbd> screens · <kbd>space</kbd> plays · <kbd>←</kbd> <kbd>→</kbd> a second · <kbd>j</kbd> <kbd>k</kbd> devices</footer>`;
  }

  // Keys ---------------------------------------------------------------------------------------------------

  function nextDevice(step) {
    const devices = [...document.querySelectorAll("[data-device]")];
    if (!devices.length) return;
    const at = devices.indexOf(document.activeElement);
    devices[at < 0 ? (step > 0 ? 0 : devices.length - 1) : (at + step + devices.length) % devices.length].focus();
  }

  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const tag = event.target.tagName;
    if (tag === "INPUT" || tag === "SELECT" || tag === "TEXTAREA") return;
    const shown = S.store.at ?? S.store.record.to_s;
    const keys = {
      j: () => nextDevice(1),
      k: () => nextDevice(-1),
      ArrowLeft: () => S.look(shown - 1),
      ArrowRight: () => S.look(shown + 1),
      " ": () => !["BUTTON", "A", "SUMMARY"].includes(tag) && S.play(),
    };
    SCREENS.forEach(([name], at) => (keys[String(at + 1)] = () => (location.hash = `#/${name}`)));
    if (!Object.hasOwn(keys, event.key)) return;
    if (keys[event.key]() !== false) event.preventDefault();
  });

  const root = document.getElementById("app");
  root.replaceChildren();
  render(html`<${App} />`, root);
  S.begin();
})((window.Shoal ??= {}));
