// Built from tab/src by `python tools/tasks.py tab`; do not edit.

// src/rest.ts
var BATTERY_LEAST = 0.3;
function whyRest(around2, allowed) {
  if (around2.isHidden && !allowed.hidden) return "this page is in the background";
  if (around2.isMetered && !allowed.metered) return "this connection may cost money";
  const isLow = around2.battery !== null && !around2.isCharging && around2.battery < BATTERY_LEAST;
  if (isLow && !allowed.battery) return `the battery is below ${BATTERY_LEAST * 100} % and is not charging`;
  return "";
}

// src/page.ts
var at = (id) => document.getElementById(id);
var worker = new Worker("/tab.js", { type: "module" });
var say = (said) => worker.postMessage(said);
var secret = new URLSearchParams(location.hash.slice(1)).get("join") ?? "";
history.replaceState(null, "", location.pathname);
var shown = null;
var battery = null;
var lock = null;
var isOn = false;
var WORDS = {
  new: "",
  joining: "Joining",
  connecting: "Connecting",
  waiting: "Connected",
  working: "Training",
  paused: "Resting",
  stopped: "Stopped",
  refused: "Not let in"
};
worker.onmessage = ({ data }) => draw(data);
worker.onerror = ({ message }) => {
  at("state").textContent = "This browser cannot train";
  at("reason").textContent = message || "WebAssembly or module workers are missing.";
};
function draw(now) {
  shown = now;
  const isKnown = Boolean(now.node);
  const isAsked = now.state === "new" || now.state === "refused";
  document.body.dataset.state = now.state;
  at("ask").hidden = !isAsked;
  at("run").hidden = isAsked;
  at("agree").hidden = !(secret || isKnown);
  at("no-link").hidden = Boolean(secret || isKnown);
  at("agree").textContent = isKnown && !(secret && now.state === "refused") ? `Train again as ${now.node}` : "Agree and train";
  at("refusal").textContent = now.state === "refused" ? now.reason : "";
  at("state").textContent = WORDS[now.state];
  at("reason").textContent = now.reason;
  at("reason").ariaLive = now.state === "working" ? "off" : "polite";
  at("job").textContent = now.job || "none";
  at("engine").textContent = now.engine || "…";
  at("node").textContent = now.node;
  at("leases").textContent = String(now.leases);
  at("examples").textContent = now.examples.toLocaleString("en");
  at("loss").textContent = now.loss === null ? "…" : now.loss.toFixed(3);
  at("traffic").textContent = `${megabytes(now.down_bytes)} down
${megabytes(now.up_bytes)} up`;
  at("progress").max = Math.max(1, now.of);
  at("progress").value = now.done;
  at("stop").hidden = now.state === "stopped";
  at("go-on").hidden = now.state !== "stopped";
  void keepScreenOn(now.state === "working" && isOn);
}
function megabytes(bytes) {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}
async function keepScreenOn(wanted) {
  const screen = navigator.wakeLock;
  if (wanted && !lock && screen && !document.hidden) {
    lock = await screen.request("screen").catch(() => null);
  } else if (!wanted && lock) {
    await lock.release().catch(() => void 0);
    lock = null;
  }
}
function around() {
  const link = navigator.connection;
  return {
    isHidden: document.hidden,
    battery: battery?.level ?? null,
    isCharging: battery?.charging ?? false,
    isMetered: Boolean(link?.saveData || link?.type === "cellular")
  };
}
function look() {
  const allowed = { hidden: isTicked("allow-hidden"), battery: isTicked("allow-battery"), metered: isTicked("allow-metered") };
  if (document.hidden) lock = null;
  say({ say: "pause", why: whyRest(around(), allowed) });
}
function isTicked(id) {
  return at(id).checked;
}
function about() {
  const told = navigator.userAgentData;
  const brand = told?.brands.find(({ brand: brand2 }) => !/not.*brand/i.test(brand2));
  if (told && brand) return `${brand.brand} ${brand.version} on ${told.platform || "a computer"}`;
  return /Firefox\/(\d+)/.exec(navigator.userAgent)?.[0].replace("/", " ") ?? (/Safari/.test(navigator.userAgent) ? "Safari" : "a browser");
}
at("agree").onclick = () => {
  isOn = true;
  look();
  if (secret && (!shown?.node || shown.state === "refused")) say({ say: "join", secret, wanted: "tab", about: about() });
  else say({ say: "start", about: about() });
};
at("stop").onclick = () => {
  isOn = false;
  say({ say: "stop" });
};
at("go-on").onclick = () => at("agree").click();
at("forget").onclick = () => say({ say: "forget" });
for (const id of ["allow-hidden", "allow-battery", "allow-metered"]) at(id).onchange = look;
at("want-graphics").onchange = () => say({ say: "graphics", isWanted: isTicked("want-graphics") });
document.addEventListener("visibilitychange", look);
addEventListener("pagehide", () => say({ say: "stop" }));
navigator.connection?.addEventListener("change", look);
navigator.getBattery?.().then((found) => {
  battery = found;
  for (const name of ["levelchange", "chargingchange"]) found.addEventListener(name, look);
  look();
}, () => void 0);
at("where").textContent = location.host;
say({ say: "look" });
