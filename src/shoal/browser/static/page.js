// Built from tab/src by `python tools/tasks.py tab`; do not edit.

// src/words.ts
var EN = {
  title: "Train with this browser",
  "lead.cluster": "The cluster {0} asks this device to help train a model.",
  "lead.operator": "The cluster {0} asks this device to help train a model. It is run by: {1}",
  "lead.unknown": "A cluster asks this device to help train a model.",
  purpose: "What for: {0}",
  "job.minute": "The job {0} downloads up to {1} MB once, then moves about {2} MB a minute.",
  "job.update": "The job {0} downloads up to {1} MB once, then moves about {2} MB for each update.",
  "job.unknown": "The job {0} does not say how much it downloads.",
  "job.none": "There is no job now. When there is one, this page says how much it downloads, and asks you first.",
  "ask.warm": "It computes while it is open and in front. Your device gets warm and uses power.",
  "ask.sends": "It sends back what the model learned from the job's own examples. It reads none of your files, photos, contacts or places.",
  "ask.keeps": "What it downloads stays in this browser, so that it is downloaded once. Leave this cluster deletes it.",
  "ask.stop": "You can stop at any time. Nothing is lost: another device does the rest.",
  "later.label": "Take part in later jobs of this cluster too, up to {0} MB each",
  agree: "Agree and train",
  again: "Train again as {0}",
  "no-link": "To take part, open the link, or scan the code, that the people who run the cluster gave you.",
  "take-job": "Download and train",
  "no-thanks": "No, stop",
  leases: "updates sent",
  examples: "examples trained",
  loss: "last loss",
  job: "job",
  node: "this device",
  traffic: "data",
  engine: "computes by",
  progress: "batches of this lease",
  none: "none",
  down: "{0} MB down",
  up: "{0} MB up",
  stop: "Stop",
  "go-on": "Go on",
  details: "When it rests, and what computes",
  "allow-hidden": "Train in the background too",
  "allow-battery": "Train on a battery below 30 %",
  "allow-metered": "Train over mobile data",
  "want-graphics": "Use the graphics processor even if it is slower, from the next job on",
  forget: "Leave this cluster",
  "state.new": "",
  "state.joining": "Joining",
  "state.connecting": "Connecting",
  "state.waiting": "Connected",
  "state.asking": "A new job",
  "state.working": "Training",
  "state.paused": "Resting",
  "state.stopped": "Stopped",
  "state.refused": "Not let in",
  "state.elsewhere": "Open in another tab",
  "state.broken": "This browser cannot train",
  "why.elsewhere": "This browser already takes part in another tab. Close that one, and this one goes on.",
  "why.broken": "WebAssembly or module workers are missing.",
  "why.joining": "making a key and joining",
  "why.calling": "calling the cluster",
  "why.closed": "the connection was closed",
  "why.silent": "the cluster does not answer",
  "why.offline": "This device is offline. This page asks the cluster again when it is online.",
  "why.unreachable": "the cluster cannot be reached",
  "why.no-job": "connected; there is no job for this device now",
  "why.no-other-job": "{0}; there is no other job for this device now",
  "why.no-work": "there is no work now; this page asks again later",
  "why.led-elsewhere": "{0} leads this job, and a page cannot reach it",
  "why.no-rows": "the job {0} learns from rows that a device has, and this one gives none",
  "why.asking": "{0} waits for your answer; nothing was downloaded",
  "why.stopped": "stopped; what was not sent goes to another device",
  "why.hidden": "this page is in the background",
  "why.metered": "this connection may cost money",
  "why.battery": "the battery is below {0} % and is not charging",
  "why.left": "stopped by its user",
  "why.gone": "its user left the cluster",
  "why.fetching-model": "fetching the graphs and the model",
  "why.fetching-examples": "fetching examples",
  "why.trying": "loading the engine and trying the known batch",
  "why.sent": "sent; waiting for the next version",
  "why.evaluating": "trying version {0} on examples held out",
  "why.batch": "1 batch of epoch {1}",
  "why.batches": "{0} batches of epoch {1}",
  "refused.used": "This link was used already. Ask for another.",
  "refused.expired": "This link is too old. Ask for another.",
  "refused.unknown": "This link is not known here. Ask for another.",
  "refused.twice": "Another device uses this browser's key: a copy of its profile, say. Ask for another link.",
  "refused.out": "The people who run the cluster shut this device out.",
  "refused.old": "This browser's permit is not valid any more. Ask for another link.",
  "refused.other": "The cluster refused: {0}"
};
var LANGUAGES = { en: EN };
function say(word, ...values) {
  const language2 = globalThis.navigator?.language?.slice(0, 2) ?? "en";
  const text = LANGUAGES[language2]?.[word] ?? EN[word];
  return text.replace(/\{(\d)\}/g, (_, i) => String(values[Number(i)]));
}
function isWord(word) {
  return word in EN;
}
function language() {
  const wanted = globalThis.navigator?.language?.slice(0, 2) ?? "en";
  return wanted in LANGUAGES ? wanted : "en";
}
function megabytes(bytes) {
  const mb = bytes / 1e6;
  return mb >= 10 ? mb.toFixed(0) : mb.toFixed(1);
}

// src/rest.ts
var BATTERY_LEAST = 0.3;
function whyRest(around2, allowed) {
  if (around2.isHidden && !allowed.hidden) return say("why.hidden");
  if (around2.isMetered && !allowed.metered) return say("why.metered");
  const isLow = around2.battery !== null && !around2.isCharging && around2.battery < BATTERY_LEAST;
  if (isLow && !allowed.battery) return say("why.battery", BATTERY_LEAST * 100);
  return "";
}

// src/page.ts
var at = (id) => document.getElementById(id);
var worker = null;
var tell = (said) => worker?.postMessage(said);
var LATER_MB = 200;
var PROGRAM_BYTES = 4e6;
var secret = new URLSearchParams(location.hash.slice(1)).get("join") ?? "";
history.replaceState(null, "", location.pathname);
var shown = null;
var battery = null;
var lock = null;
var isScreenWanted = false;
var settled = Promise.resolve();
var isOn = false;
var letGo = null;
function write() {
  document.documentElement.lang = language();
  document.title = `${say("title")} · Shoal`;
  for (const each of document.querySelectorAll("[data-word]")) {
    const word = each.dataset.word;
    if (isWord(word)) each.textContent = say(word);
  }
  at("progress").ariaLabel = say("progress");
  at("later-label").textContent = say("later.label", LATER_MB);
}
function asked(now) {
  const { about: about2 } = now;
  const cluster = about2?.cluster || now.cluster;
  const lead = about2?.operator ? say("lead.operator", cluster, about2.operator) : cluster ? say("lead.cluster", cluster) : say("lead.unknown");
  const jobs = !about2 ? [] : about2.jobs.length ? about2.jobs.map(moves) : [say("job.none")];
  return [lead, ...about2?.purpose ? [say("purpose", about2.purpose)] : [], ...jobs];
}
function moves({ name, once_bytes, update_bytes, minute_bytes }) {
  if (!(once_bytes >= 0)) return say("job.unknown", name);
  const once = megabytes(once_bytes + PROGRAM_BYTES);
  return minute_bytes ? say("job.minute", name, once, megabytes(minute_bytes)) : say("job.update", name, once, megabytes(update_bytes));
}
function list(id, lines) {
  at(id).replaceChildren(...lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
}
function hire() {
  worker = new Worker("/tab.js", { type: "module" });
  worker.onmessage = ({ data }) => draw(data);
  worker.onerror = ({ message }) => status("state.broken", message || say("why.broken"));
  tell({ say: "look", secret });
}
function status(state, reason) {
  document.body.dataset.state = state.slice("state.".length);
  at("ask").hidden = true;
  at("run").hidden = false;
  for (const id of ["stop", "go-on", "figures", "progress", "more"]) at(id).hidden = true;
  at("state").textContent = say(state);
  at("reason").textContent = reason;
}
function draw(now) {
  shown = now;
  const isKnown = Boolean(now.node);
  const isAsked = now.state === "new" || now.state === "refused";
  document.body.dataset.state = now.state;
  document.body.dataset.files = String(now.files_bytes);
  at("ask").hidden = !isAsked;
  at("run").hidden = isAsked;
  const isVoid = now.state === "refused" && !isKnown && !now.about;
  at("agree").hidden = isVoid || !(secret || isKnown);
  at("no-link").hidden = Boolean(secret || isKnown);
  at("agree").textContent = isKnown && !(secret && now.state === "refused") ? say("again", now.node) : say("agree");
  at("terms").hidden = at("agree").hidden;
  list("asked", asked(now));
  at("offer").hidden = now.state !== "asking";
  list("offered", now.offer ? [moves(now.offer)] : []);
  for (const id of ["figures", "progress", "more"]) at(id).hidden = now.state === "asking";
  at("refusal").textContent = isAsked ? now.reason && !navigator.onLine ? say("why.offline") : now.reason : "";
  at("state").textContent = say(`state.${now.state}`);
  at("reason").textContent = now.reason;
  at("reason").ariaLive = now.state === "working" ? "off" : "polite";
  at("job").textContent = now.job || say("none");
  at("engine").textContent = now.engine || "…";
  at("node").textContent = now.node;
  at("leases").textContent = String(now.leases);
  at("examples").textContent = now.examples.toLocaleString(language());
  at("loss").textContent = now.loss === null ? "…" : now.loss.toFixed(3);
  at("traffic").textContent = `${say("down", (now.down_bytes / 1e6).toFixed(1))}
${say("up", (now.up_bytes / 1e6).toFixed(1))}`;
  at("progress").max = Math.max(1, now.of);
  at("progress").value = now.done;
  at("stop").hidden = now.state === "stopped" || now.state === "asking";
  at("go-on").hidden = now.state !== "stopped";
  keepScreenOn(now.state === "working" && isOn);
}
function keepScreenOn(wanted) {
  isScreenWanted = wanted;
  settled = settled.then(settleScreen);
}
async function settleScreen() {
  const screen = navigator.wakeLock;
  const held = lock?.released === false ? lock : null;
  if (isScreenWanted && !held && screen && !document.hidden) lock = await screen.request("screen").catch(() => null);
  else if (!isScreenWanted && held) await held.release().catch(() => void 0);
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
  tell({ say: "pause", why: whyRest(around(), allowed) });
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
at("agree").onclick = async () => {
  if (!await hold()) {
    await waitForOther();
    return draw(shown);
  }
  isOn = true;
  tell({ say: "later", megabytes: isTicked("later") ? LATER_MB : 0 });
  look();
  if (secret && (!shown?.node || shown.state === "refused")) tell({ say: "join", secret, wanted: "tab", about: about() });
  else tell({ say: "start", about: about() });
};
at("stop").onclick = () => {
  isOn = false;
  tell({ say: "stop" });
  release();
};
at("take-job").onclick = () => tell({ say: "take" });
at("no-thanks").onclick = () => at("stop").click();
at("go-on").onclick = () => at("agree").click();
at("forget").onclick = () => {
  tell({ say: "forget" });
  release();
};
for (const id of ["allow-hidden", "allow-battery", "allow-metered"]) at(id).onchange = look;
at("want-graphics").onchange = () => tell({ say: "graphics", isWanted: isTicked("want-graphics") });
document.addEventListener("visibilitychange", look);
addEventListener("online", () => {
  if (shown?.state === "new") tell({ say: "look", secret });
});
addEventListener("pagehide", () => tell({ say: "stop" }));
navigator.connection?.addEventListener("change", look);
navigator.getBattery?.().then((found) => {
  battery = found;
  for (const name of ["levelchange", "chargingchange"]) found.addEventListener(name, look);
  look();
}, () => void 0);
write();
at("where").textContent = location.host;
var LOCK = "shoal";
async function hold() {
  if (letGo) return true;
  return new Promise((held) => {
    void navigator.locks.request(LOCK, { ifAvailable: true }, (lock2) => {
      held(lock2 !== null);
      return lock2 ? new Promise((release2) => letGo = release2) : void 0;
    });
  });
}
function release() {
  letGo?.();
  letGo = null;
}
async function waitForOther() {
  status("state.elsewhere", say("why.elsewhere"));
  await navigator.locks.request(LOCK, () => void 0);
}
async function begin() {
  const { held } = await navigator.locks.query();
  if (held?.some(({ name }) => name === LOCK)) await waitForOther();
  hire();
}
if (window.top === window) void navigator.serviceWorker?.register("/service.js").catch((error) => console.info(`not installable: ${error}`));
void begin();
