#!/usr/bin/env node
// `shoal-worker join LINE`: a device without a browser and without Python. Ends by Ctrl-C, and says goodbye.

import { homedir, hostname, platform } from "node:os";
import { join as pathOf } from "node:path";
import { parseArgs } from "node:util";
import { Device, type Shown } from "../device.ts";
import type { Offer } from "../identity.ts";
import { RefusedHere } from "../identity.ts";
import { megabytes } from "../words.ts";
import { claim } from "./claim.ts";
import { nodeParts } from "./index.ts";

const HELP = `Train for a Shoal cluster, without a browser.

  shoal-worker join LINE    LINE is what \`shoal token create --browser\` prints, in quotes.
                            Later, the part before the # is enough.

  --home FOLDER   where this device keeps its key and files of jobs (~/.shoal-worker)
  --name NAME     what the device would like to be called (this machine's name)
  --max-mb MB     download no job that is larger (1000)
  --data FOLDER   rows of this device's own (.npz, .csv), for jobs that learn from them.
                  They stay here: what leaves is what the model learned, and their number
  --threads N     how many threads compute (half of the processors)
`;
/** Sockets get this long to say goodbye. */
const GOODBYE_S = 3;

interface Told { line: string; home: string; name: string; max_mb: number; threads: number; data: string }

function read(argv: string[]): Told | null {
  const { values, positionals } = parseArgs({
    args: argv,
    allowPositionals: true,
    options: {
      home: { type: "string" }, name: { type: "string" }, "max-mb": { type: "string" }, threads: { type: "string" },
      data: { type: "string" },
      help: { type: "boolean", short: "h" },
    },
  });
  const [command, line] = positionals;
  if (values.help || command !== "join" || !line || positionals.length !== 2) return null;
  const max_mb = Number(values["max-mb"] ?? 1000), threads = Number(values.threads ?? 0);
  if (!(max_mb >= 0) || !Number.isInteger(threads) || threads < 0) throw new Error("--max-mb and --threads are numbers that are not negative");
  return { line, home: values.home ?? pathOf(homedir(), ".shoal-worker"), name: values.name ?? deviceName(), max_mb, threads, data: values.data ?? "" };
}

/** This machine's name, as names of devices are written. */
function deviceName(): string {
  return hostname().toLowerCase().replace(/[^a-z0-9-]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 40) || "node";
}

function sizeOf({ name, once_bytes }: Offer): string {
  return once_bytes >= 0 ? `job ${name}: up to ${megabytes(once_bytes)} MB once` : `job ${name}: does not say how much it downloads`;
}

function say(line: string): void {
  console.log(line);
}

/** Prints each change of what a person would want to know, and not every lease. */
function report(device: Device, max_mb: number): void {
  let last = "";
  device.on("state", ({ state, reason, job }: Shown) => {
    const line = state === "working" ? `training ${job}` : `${state}${reason ? `: ${reason}` : ""}`;
    // A job that just ended has no name any more, and what follows it is said next.
    const isNews = line !== last && state !== "new" && !(state === "working" && !job);
    if (isNews) say(line);
    if (isNews) last = line;
  });
  device.on("offer", (offer) => {
    if (!(offer.once_bytes <= max_mb * 1e6)) say(`${sizeOf(offer)}; not taken, for --max-mb is ${max_mb}`);
  });
  device.on("record", ({ kind, reason }) => say(`${kind}: ${reason}`));
  let leases = 0;
  device.on("progress", (now) => {
    if (now.leases !== leases && now.leases % 100 === 0) say(`${now.leases} updates sent, ${now.examples} examples, loss ${now.loss?.toFixed(3) ?? "unknown"}`);
    leases = now.leases;
  });
}

async function run({ line, home, name, max_mb, threads, data }: Told): Promise<void> {
  const url = new URL(line);
  const secret = new URLSearchParams(url.hash.slice(1)).get("join") ?? "";
  const folder = pathOf(home, url.host.replace(/[^A-Za-z0-9.-]/g, "_"));
  const letGo = await claim(folder);
  process.once("exit", letGo);
  const device = new Device(nodeParts(url.origin, folder, threads, data));
  report(device, max_mb);
  device.limit(max_mb);
  const { node, about } = await device.look(secret);
  if (about?.cluster) say(`cluster ${about.cluster}${about.operator ? `, run by ${about.operator}` : ""}${about.purpose ? `: ${about.purpose}` : ""}`);
  for (const offer of about?.jobs ?? []) say(sizeOf(offer));
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => end(device));
  const what = `Node ${process.versions.node} on ${platform()}`;
  if (node && device.now.state !== "refused") device.start(what);
  else if (secret) await device.join(secret, name, what);
  else throw new RefusedHere("this device has not joined: give the whole line, with what is behind the #");
  if (device.now.state === "refused") throw new RefusedHere(device.now.reason);
  say(`this device is ${device.now.node}; Ctrl-C ends it`);
}

/** Leases go back at once. The process ends when its sockets are closed. */
function end(device: Device): void {
  device.stop();
  process.once("exit", () => say("left"));
  setTimeout(() => process.exit(0), GOODBYE_S * 1000).unref();
}

async function main(): Promise<void> {
  const told = read(process.argv.slice(2));
  if (!told) {
    console.log(HELP);
    process.exitCode = 2;
    return;
  }
  await run(told);
}

main().catch((error: unknown) => {
  console.error(error instanceof Error ? error.message : String(error));
  process.exit(1);
});
