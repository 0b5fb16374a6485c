// The data of the page: the state and its patches, live or replayed, the recording, and the session. Draws nothing.
"use strict";
((S) => {
  const LIVE_LANES_S = 900;
  const RETRY_MS = [500, 1000, 2000, 5000, 10000];

  /**
   * RFC 7386, without touching `target`. Objects have no prototype: devices choose their names, and one may be
   * called `__proto__` or `constructor`.
   */
  function merged(target, patch) {
    if (patch === null || typeof patch !== "object" || Array.isArray(patch)) return patch;
    const result = Object.create(null);
    if (target && typeof target === "object" && !Array.isArray(target)) Object.assign(result, target);
    for (const [name, value] of Object.entries(patch)) {
      if (value === null) delete result[name];
      else result[name] = merged(result[name], value);
    }
    return result;
  }

  const store = {
    session: null, // null until the console answered
    link: "connecting", // connecting | live | away | ended
    live: null, // the newest state
    past: null, // the state that is shown instead, in replay
    at: null, // its moment; null: now
    playing: false,
    record: { from_s: 0, to_s: 0, marks: [] },
    lanes: new Map(),
    lanesFrom: Infinity,
  };
  const listeners = new Set();
  let scheduled = false;

  // A browser sends the cookie to every port of this host. It keeps the key for this port. The key came after the # of
  // the address, which browsers do not send to servers.
  const KEY = "shoal-key";
  let ownKey = /^#key=([\w-]+)$/u.exec(location.hash)?.[1] ?? "";
  if (ownKey) {
    try {
      localStorage.setItem(KEY, ownKey);
    } catch {
      // It lasts as long as this page does.
    }
    history.replaceState(null, "", location.pathname);
  }

  /** The key of the newest session in this browser: another tab may have opened a link since. */
  function key() {
    try {
      ownKey = localStorage.getItem(KEY) ?? ownKey;
    } catch {
      // The one that this page came with.
    }
    return ownKey;
  }

  function changed() {
    if (scheduled) return;
    scheduled = true;
    queueMicrotask(() => {
      scheduled = false;
      for (const listener of listeners) listener();
    });
  }

  async function ask(path) {
    const answer = await fetch(path, { headers: { accept: "application/json", "x-shoal-key": key() } });
    if (answer.status === 401 || answer.status === 403) {
      store.link = "ended";
      changed();
    }
    if (!answer.ok) throw new Error(`${path.split("?")[0]} answered ${answer.status}`);
    return answer.json();
  }

  /** A POST; gives {done} or {denied}, whatever happens. */
  async function tell(path, body) {
    try {
      // A person can be faster than the session's answer.
      store.session ??= await ask("/api/session");
      const headers = {
        "content-type": "application/json",
        "x-shoal-key": key(),
        "x-shoal-csrf": store.session.csrf,
      };
      const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify(body) });
      const said = await answer.json().catch(() => ({}));
      return answer.ok ? said : { denied: said.denied || `The console answered ${answer.status}.` };
    } catch {
      return { denied: "The console did not answer. Look whether `shoal console` still runs." };
    }
  }

  // Live ---------------------------------------------------------------------------------------------------

  let stream = null;
  let failures = 0;
  let retry = 0;

  function take(state) {
    store.live = state;
    store.link = "live";
    failures = 0;
    noteLanes(state);
    store.record.to_s = Math.max(store.record.to_s, state.at_s);
    if (!store.record.from_s) store.record.from_s = state.at_s;
    changed();
  }

  function open() {
    close();
    stream = new EventSource(`/api/stream?key=${encodeURIComponent(key())}`);
    stream.addEventListener("state", (event) => {
      take(merged(null, JSON.parse(event.data)));
      loadLanes(store.live.at_s - 60);
    });
    stream.addEventListener("patch", (event) => {
      if (store.live) take(merged(store.live, JSON.parse(event.data)));
    });
    stream.onerror = () => {
      if (store.link !== "ended") store.link = store.live ? "away" : "connecting";
      changed();
      // A browser resumes by itself unless it was turned away: then check the session, and start again.
      if (stream?.readyState === EventSource.CLOSED) {
        clearTimeout(retry);
        retry = setTimeout(begin, RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)]);
      }
    };
  }

  function close() {
    clearTimeout(retry);
    stream?.close();
    stream = null;
  }

  async function begin() {
    if (document.hidden) return;
    open();
    try {
      store.session = await ask("/api/session");
      changed();
      refreshRecord();
    } catch {
      if (store.link === "ended") close();
      changed();
    }
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : begin()));

  // What was recorded --------------------------------------------------------------------------------------

  async function refreshRecord() {
    try {
      const told = await ask("/api/replay");
      store.record = { ...told, to_s: Math.max(told.to_s, store.live?.at_s ?? 0) };
      changed();
    } catch {
      // The next poll asks again.
    }
  }
  setInterval(() => !document.hidden && store.link === "live" && refreshRecord(), 10000);

  /** Lanes grow with each state; what lies before comes from the console. */
  function noteLanes(state) {
    if (state.at_s < store.lanesFrom) store.lanesFrom = state.at_s;
    for (const [name, node] of Object.entries(state.nodes ?? {})) {
      let spans = store.lanes.get(name);
      if (!spans) store.lanes.set(name, (spans = []));
      const last = spans.at(-1);
      if (last && state.at_s - last[1] < 15) {
        if (last[1] < state.at_s) last[1] = state.at_s;
        if (last[2] !== node.does) spans.push([state.at_s, state.at_s, node.does]);
      } else {
        spans.push([state.at_s, state.at_s, node.does]);
      }
      while (spans.length > 1 && spans[0][1] < state.at_s - LIVE_LANES_S) spans.shift();
    }
  }

  async function loadLanes(fromS) {
    const toS = store.live.at_s;
    try {
      const told = await ask(`/api/lanes?from=${fromS}&to=${toS}`);
      for (const [name, spans] of Object.entries(told.lanes)) {
        const since = (store.lanes.get(name) ?? []).filter((each) => each[1] > toS);
        if (since.length && spans.length && since[0][0] < spans.at(-1)[1]) since[0][0] = spans.at(-1)[1];
        store.lanes.set(name, [...spans, ...since]);
      }
      store.lanesFrom = Math.min(store.lanesFrom, fromS);
      changed();
    } catch {
      // They grow from here on.
    }
  }

  let pastLanes = { key: "", lanes: new Map() };
  let wanted = "";

  /** Node -> spans, for a stretch of time that ends at the moment shown. */
  function lanes(fromS, toS) {
    if (store.at === null) {
      if (fromS < store.lanesFrom && store.live && fromS >= store.record.from_s - 1) {
        store.lanesFrom = fromS;
        loadLanes(fromS);
      }
      return store.lanes;
    }
    const key = `${fromS.toFixed(1)} ${toS.toFixed(1)}`;
    if (pastLanes.key !== key && wanted !== key) {
      wanted = key;
      ask(`/api/lanes?from=${fromS}&to=${toS}`).then(
        (told) => {
          pastLanes = { key, lanes: new Map(Object.entries(told.lanes)) };
          changed();
        },
        () => {},
      );
    }
    return pastLanes.lanes;
  }

  // Replay -------------------------------------------------------------------------------------------------

  let asked = 0;

  async function look(atS) {
    if (atS === null || atS >= store.record.to_s - 0.5) {
      Object.assign(store, { at: null, past: null, playing: false });
      asked += 1;
      return changed();
    }
    store.at = Math.max(store.record.from_s, atS);
    changed();
    const number = ++asked;
    await new Promise((resume) => setTimeout(resume, 60));
    if (number !== asked) return; // The thumb has moved on.
    try {
      const state = merged(null, await ask(`/api/replay?at=${store.at}`));
      if (number === asked) store.past = state;
    } catch {
      // The last one stays.
    }
    changed();
  }

  let clockwork = 0;
  function play(on = !store.playing) {
    clearInterval(clockwork);
    if (on && store.at === null) store.at = store.record.from_s;
    store.playing = on;
    if (on) clockwork = setInterval(() => (store.playing ? look(store.at + 1) : clearInterval(clockwork)), 1000);
    changed();
  }

  Object.assign(S, { store, merged, ask, tell, begin, lanes, look, play });
  S.state = () => (store.at === null ? store.live : (store.past ?? store.live));
  S.listen = (listener) => {
    listeners.add(listener);
    return () => listeners.delete(listener);
  };
  S.may = (kind) =>
    store.at === null && store.session?.role === "operator" && (store.session.allow ?? []).includes(kind);
})((window.Shoal ??= {}));
