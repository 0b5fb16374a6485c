// Plays lives of Python's worker again with the tab's: `node tab/test/traces.mjs FILE`, which may be packed by gzip. Prints one
// JSON object, and fails on the first differences. A field that the tab leaves out has protobuf's empty value.

import { createReadStream } from "node:fs";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { createGunzip } from "node:zlib";
import { Worker } from "../built/worker_role.mjs";

const EMPTY = new Set(["", 0, false, null]);

function revived(event) {
  const number = (value) => (value === "nan" ? NaN : value === "inf" ? Infinity : value === "-inf" ? -Infinity : value);
  if (event.event === "Trained") event.loss_sum = number(event.loss_sum);
  for (const metric of event.metrics ?? []) metric.sums = metric.sums.map(number);
  if (event.tensors) event.tensors = floats(event.tensors);
  return event;
}

function floats(tensors) {
  return Object.fromEntries(Object.entries(tensors).map(([name, values]) => [name, Float32Array.from(values)]));
}

/** What is said, without what is empty, in one order. */
function bare(value) {
  if (value instanceof Float32Array) return Array.from(value);
  if (Array.isArray(value)) return value.map(bare);
  if (value === null || typeof value !== "object") return value;
  // Two libraries' logarithms may differ in the last bits.
  const kept = Object.entries(value).map(([name, inner]) => [name, name === "spent" ? inner.toPrecision(9) : bare(inner)])
    .filter(([, inner]) => !(EMPTY.has(inner) || (typeof inner === "object" && inner !== null && !Object.keys(inner).length)));
  return Object.fromEntries(kept.sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** Play every life of a file; how many there were, and how many differ. */
export async function play(path) {
  const counts = { traces: 0, events: 0, actions: 0, differences: 0 };
  const raw = createReadStream(path);
  const input = path.endsWith(".gz") ? raw.pipe(createGunzip()) : raw;
  for await (const line of createInterface({ input })) {
    const life = JSON.parse(line);
    const worker = new Worker(life.job, life.leader, life.term, life.plan);
    counts.traces += 1;
    for (const [number, { event, actions, phase, reason }] of life.steps.entries()) {
      const found = worker.handle(revived(event));
      counts.events += 1;
      counts.actions += actions.length;
      const [mine, theirs] = [found, actions].map((list) => JSON.stringify(list.map(bare)));
      if (mine === theirs && worker.phase === phase && worker.reason === reason) continue;
      counts.differences += 1;
      if (counts.differences <= 5) {
        console.error(`life ${counts.traces}, step ${number}: ${JSON.stringify(bare(event)).slice(0, 500)}`);
        console.error(`  Python: ${theirs.slice(0, 700)} ${phase}: ${reason.slice(0, 200)}`);
        console.error(`  tab:    ${mine.slice(0, 700)} ${worker.phase}: ${worker.reason.slice(0, 200)}`);
      }
      break;
    }
  }
  return counts;
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const counts = await play(process.argv[2]);
  console.log(JSON.stringify(counts));
  process.exit(counts.differences ? 1 : 0);
}
