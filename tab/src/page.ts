// The page: what is asked of a person, how it goes, and a button that ends it. Decides nothing about training.

import { type Around, whyRest } from "./rest.ts";
import type { Said, Shown } from "./tab.ts";

const at = <T extends HTMLElement = HTMLElement>(id: string) => document.getElementById(id) as T;
const worker = new Worker("/tab.js", { type: "module" });
const say = (said: Said) => worker.postMessage(said);

/** The token is behind the #, which no server sees; it leaves the address at once, so that no history keeps it. */
const secret = new URLSearchParams(location.hash.slice(1)).get("join") ?? "";
history.replaceState(null, "", location.pathname);

let shown: Shown | null = null;
let battery: { level: number; charging: boolean; addEventListener(name: string, hear: () => void): void } | null = null;
let lock: { release(): Promise<void> } | null = null;
let isOn = false;

const WORDS: Record<Shown["state"], string> = {
  new: "", joining: "Joining", connecting: "Connecting", waiting: "Connected", working: "Training", paused: "Resting",
  stopped: "Stopped", refused: "Not let in",
};

worker.onmessage = ({ data }) => draw(data as Shown);
worker.onerror = ({ message }) => {
  at("state").textContent = "This browser cannot train";
  at("reason").textContent = message || "WebAssembly or module workers are missing.";
};

function draw(now: Shown): void {
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
  // Read aloud where something is the matter, not with every lease.
  at("reason").ariaLive = now.state === "working" ? "off" : "polite";
  at("job").textContent = now.job || "none";
  at("engine").textContent = now.engine || "…";
  at("node").textContent = now.node;
  at("leases").textContent = String(now.leases);
  at("examples").textContent = now.examples.toLocaleString("en");
  at("loss").textContent = now.loss === null ? "…" : now.loss.toFixed(3);
  at("traffic").textContent = `${megabytes(now.down_bytes)} down\n${megabytes(now.up_bytes)} up`;
  at<HTMLProgressElement>("progress").max = Math.max(1, now.of);
  at<HTMLProgressElement>("progress").value = now.done;
  at("stop").hidden = now.state === "stopped";
  at("go-on").hidden = now.state !== "stopped";
  void keepScreenOn(now.state === "working" && isOn);
}

function megabytes(bytes: number): string {
  return `${(bytes / 1e6).toFixed(1)} MB`;
}

/** A phone that turns its screen off stops the page too. */
async function keepScreenOn(wanted: boolean): Promise<void> {
  const screen = (navigator as unknown as { wakeLock?: { request(kind: string): Promise<{ release(): Promise<void> }> } }).wakeLock;
  if (wanted && !lock && screen && !document.hidden) {
    lock = await screen.request("screen").catch(() => null);
  } else if (!wanted && lock) {
    await lock.release().catch(() => undefined);
    lock = null;
  }
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
  if (document.hidden) lock = null;
  say({ say: "pause", why: whyRest(around(), allowed) });
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
// A page that goes away says goodbye, where the browser still lets it.
addEventListener("pagehide", () => say({ say: "stop" }));
(navigator as unknown as { connection?: EventTarget }).connection?.addEventListener("change", look);
(navigator as unknown as { getBattery?(): Promise<NonNullable<typeof battery>> }).getBattery?.().then((found) => {
  battery = found;
  for (const name of ["levelchange", "chargingchange"]) found.addEventListener(name, look);
  look();
}, () => undefined);

at("where").textContent = location.host;
say({ say: "look" });
