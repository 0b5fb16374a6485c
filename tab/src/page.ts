// The page: what is asked of a person, how it goes, and a button that ends it. Decides nothing about training.

import { type Around, whyRest } from "./rest.ts";
import type { Offer } from "./identity.ts";
import { drawRows, tellAdded, wanting } from "./page_rows.ts";
import type { Said, Shown, Told } from "./tab.ts";
import { isWord, language, megabytes, say, type Word } from "./words.ts";

const at = <T extends HTMLElement = HTMLElement>(id: string) => document.getElementById(id) as T;
/** Made when no other tab of this browser takes part. */
let worker: Worker | null = null;
const tell = (said: Said) => worker?.postMessage(said);
/** Later jobs that need no other answer, if its user ticks that. */
const LATER_MB = 200;
/** What a browser loads to train any job, as it is sent. */
const PROGRAM_BYTES = 4e6;

/** The token is behind the #, which no server sees; it leaves the address at once, so that no history keeps it. */
const secret = new URLSearchParams(location.hash.slice(1)).get("join") ?? "";
history.replaceState(null, "", location.pathname);

let shown: Shown | null = null;
let battery: { level: number; charging: boolean; addEventListener(name: string, hear: () => void): void } | null = null;
interface ScreenLock { readonly released: boolean; release(): Promise<void> }
let lock: ScreenLock | null = null;
let isScreenWanted = false;
let settled: Promise<void> = Promise.resolve();
let isOn = false;
/** Lets another tab of this browser take part. */
let letGo: (() => void) | null = null;

/** Put every text of the page where it goes: an element names its own. */
function write(): void {
  document.documentElement.lang = language();
  document.title = `${say("title")} · Shoal`;
  for (const each of document.querySelectorAll<HTMLElement>("[data-word]")) {
    const word = each.dataset.word!;
    if (isWord(word)) each.textContent = say(word);
  }
  at("progress").ariaLabel = say("progress");
  at("later-label").textContent = say("later.label", LATER_MB);
}

/** The lines of what is asked. Text that came from the cluster is text here too, never markup. */
function asked(now: Shown): string[] {
  const { about } = now;
  const cluster = about?.cluster || now.cluster;
  const lead = about?.operator ? say("lead.operator", cluster, about.operator) : cluster ? say("lead.cluster", cluster) : say("lead.unknown");
  // A cluster that was not reached may have a job.
  const jobs = !about ? [] : about.jobs.length ? about.jobs.map(moves) : [say("job.none")];
  return [lead, ...(about?.purpose ? [say("purpose", about.purpose)] : []), ...jobs];
}

function moves({ name, once_bytes, update_bytes, minute_bytes }: Offer): string {
  if (!(once_bytes >= 0)) return say("job.unknown", name);
  const once = megabytes(once_bytes + PROGRAM_BYTES);
  return minute_bytes ? say("job.minute", name, once, megabytes(minute_bytes)) : say("job.update", name, once, megabytes(update_bytes));
}

function list(id: string, lines: string[]): void {
  at(id).replaceChildren(...lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
}

function hire(): void {
  worker = new Worker("/tab.js", { type: "module" });
  worker.onmessage = ({ data }) => {
    const told = data as Told;
    if ("shown" in told) draw(told.shown);
    else tellAdded(told.added);
  };
  worker.onerror = ({ message }) => status("state.broken", message || say("why.broken"));
  tell({ say: "look", secret });
}

function status(state: Word, reason: string): void {
  document.body.dataset.state = state.slice("state.".length);
  at("ask").hidden = true;
  at("run").hidden = false;
  for (const id of ["stop", "go-on", "figures", "progress", "more"]) at(id).hidden = true;
  at("state").textContent = say(state);
  at("reason").textContent = reason;
}

function draw(now: Shown): void {
  shown = now;
  const isKnown = Boolean(now.node);
  const isAsked = now.state === "new" || now.state === "refused";
  document.body.dataset.state = now.state;
  document.body.dataset.files = String(now.files_bytes);
  at("ask").hidden = !isAsked;
  at("run").hidden = isAsked;
  // Nobody can agree to a link that is good for nothing.
  const isVoid = now.state === "refused" && !isKnown && !now.about;
  at("agree").hidden = isVoid || !(secret || isKnown);
  at("no-link").hidden = Boolean(secret || isKnown);
  at("agree").textContent = isKnown && !(secret && now.state === "refused") ? say("again", now.node) : say("agree");
  at("terms").hidden = at("agree").hidden;
  list("asked", asked(now));
  at("offer").hidden = now.state !== "asking";
  list("offered", now.offer ? [moves(now.offer)] : []);
  for (const id of ["figures", "progress", "more"]) at(id).hidden = now.state === "asking";
  const own = wanting(now);
  // What it sends of the job's examples, or what it reads of a person's.
  at("sends").hidden = Boolean(own) && (now.about?.jobs ?? []).every((job) => job.own);
  at("reads").hidden = !own;
  at("never-reads").hidden = Boolean(own);
  at<HTMLButtonElement>("take-job").disabled = Boolean(now.offer?.own) && !(now.rows[now.offer!.job] > 0);
  drawRows(now, at(now.state === "asking" ? "rows-of-offer" : isAsked ? "rows-asked" : "rows-running"), about(), tell);
  if (isAsked && at("agree").hidden) at("rows").hidden = true;
  at("refusal").textContent = isAsked ? (now.reason && !navigator.onLine ? say("why.offline") : now.reason) : "";
  at("state").textContent = say(`state.${now.state}`);
  at("reason").textContent = now.reason;
  // Read aloud where something is the matter, not with every lease.
  at("reason").ariaLive = now.state === "working" ? "off" : "polite";
  at("job").textContent = now.job || say("none");
  at("engine").textContent = now.engine || "…";
  at("node").textContent = now.node;
  at("leases").textContent = String(now.leases);
  at("examples").textContent = now.examples.toLocaleString(language());
  at("loss").textContent = now.loss === null ? "…" : now.loss.toFixed(3);
  at("traffic").textContent = `${say("down", (now.down_bytes / 1e6).toFixed(1))}\n${say("up", (now.up_bytes / 1e6).toFixed(1))}`;
  at<HTMLProgressElement>("progress").max = Math.max(1, now.of);
  at<HTMLProgressElement>("progress").value = now.done;
  at("stop").hidden = now.state === "stopped" || now.state === "asking";
  at("go-on").hidden = now.state !== "stopped";
  keepScreenOn(now.state === "working" && isOn);
}

/** A phone that turns its screen off stops the page too. One request at a time: of two locks, one would never be released. */
function keepScreenOn(wanted: boolean): void {
  isScreenWanted = wanted;
  settled = settled.then(settleScreen);
}

async function settleScreen(): Promise<void> {
  const screen = (navigator as unknown as { wakeLock?: { request(kind: string): Promise<ScreenLock> } }).wakeLock;
  // A browser releases it by itself while the page is hidden.
  const held = lock?.released === false ? lock : null;
  if (isScreenWanted && !held && screen && !document.hidden) lock = await screen.request("screen").catch(() => null);
  else if (!isScreenWanted && held) await held.release().catch(() => undefined);
}

function around(): Around {
  const link = (navigator as unknown as { connection?: { saveData?: boolean; type?: string } }).connection;
  return {
    isHidden: document.hidden,
    battery: battery?.level ?? null,
    isCharging: battery?.charging ?? false,
    isMetered: Boolean(link?.saveData || link?.type === "cellular"),
  };
}

function look(): void {
  const allowed = { hidden: isTicked("allow-hidden"), battery: isTicked("allow-battery"), metered: isTicked("allow-metered") };
  tell({ say: "pause", why: whyRest(around(), allowed) });
}

function isTicked(id: string): boolean {
  return at<HTMLInputElement>(id).checked;
}

/** Such as "Chromium 156 on Android": a person finds the device by it in a list. */
function about(): string {
  const told = (navigator as unknown as { userAgentData?: { brands: { brand: string; version: string }[]; platform: string } }).userAgentData;
  const brand = told?.brands.find(({ brand }) => !/not.*brand/i.test(brand));
  if (told && brand) return `${brand.brand} ${brand.version} on ${told.platform || "a computer"}`;
  return /Firefox\/(\d+)/.exec(navigator.userAgent)?.[0].replace("/", " ") ?? (/Safari/.test(navigator.userAgent) ? "Safari" : "a browser");
}

at("agree").onclick = async () => {
  if (!(await hold())) {
    await waitForOther();
    return draw(shown!);
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
// A page that goes away says goodbye, where the browser still lets it.
addEventListener("pagehide", () => tell({ say: "stop" }));
(navigator as unknown as { connection?: EventTarget }).connection?.addEventListener("change", look);
(navigator as unknown as { getBattery?(): Promise<NonNullable<typeof battery>> }).getBattery?.().then((found) => {
  battery = found;
  for (const name of ["levelchange", "chargingchange"]) found.addEventListener(name, look);
  look();
}, () => undefined);

write();
at("where").textContent = location.host;

/** One tab of a browser takes part: all of them have the same key, and the manager would take them for copies of it. */
const LOCK = "shoal";

/** Take part alone until `letGo`. False: another tab takes part. */
async function hold(): Promise<boolean> {
  if (letGo) return true;
  return new Promise((held) => {
    void navigator.locks.request(LOCK, { ifAvailable: true }, (lock) => {
      held(lock !== null);
      return lock ? new Promise<void>((release) => (letGo = release)) : undefined;
    });
  });
}

function release(): void {
  letGo?.();
  letGo = null;
}

/** Say that another tab takes part, until that is over. */
async function waitForOther(): Promise<void> {
  status("state.elsewhere", say("why.elsewhere"));
  await navigator.locks.request(LOCK, () => undefined);
}

async function begin(): Promise<void> {
  const { held } = await navigator.locks.query();
  if (held?.some(({ name }) => name === LOCK)) await waitForOther();
  hire();
}

// A page in a frame of another site is not one that a person installs.
if (window.top === window) void navigator.serviceWorker?.register("/service.js").catch((error) => console.info(`not installable: ${error}`));

void begin();
