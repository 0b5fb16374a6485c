// What a person reads of a worker: short, and one line on a phone, for it changes with every lease. Pure.

import type { Plain } from "./protobuf.ts";

/** `reason`: what the worker says of itself, where there is nothing better. `work`: the lease that it holds. */
export function inWords(phase: string, reason: string, work: Plain | null): string {
  if (phase === "training" && work) return `${counted(work.batches.length, "batch", "batches")} of epoch ${work.epoch + 1}`;
  if (phase === "evaluating" && work) return `trying version ${work.version} on examples held out`;
  if (phase === "waiting" && reason.startsWith("the update was sent")) return "sent; waiting for the next version";
  return reason;
}

function counted(count: number, one: string, many: string): string {
  return `${count} ${count === 1 ? one : many}`;
}
