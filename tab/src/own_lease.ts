// Which of a device's own rows a lease evaluates and trains on: as `trainer/own_lease.py` and `trainer/own_examples.py` have
// it. Pure; a table that Python wrote holds the two together (`test/own_draws.json`).

import { epochOrder, mix } from "./batches.ts";

/** New rows are evaluated in spans of this number of batches: without gradients more of them fit into memory. */
const JUDGED_BATCHES = 8;
/** The largest number of labels that a device counts. */
const LABELS_MAX = 4096;
/** The columns that may hold the class of a row. */
const LABELS = ["y", "label", "labels"];

export interface OwnPlan { seed: number | bigint; batch_size: number; passes: number }

/** The rows of one lease. */
export interface ChosenRows {
  /** The new rows that are evaluated before the training, in spans. */
  judged: Uint32Array[];
  /** How many rows are trained on. */
  examples: number;
  /** The rows of each batch, over all passes, and the number of batches in the first. */
  parts: Uint32Array[];
  first_pass: number;
}

/** Choose the rows of a lease of at most `examples`, on a device that has `held`, and had `seen` at its last lease. */
export function chooseRows(plan: OwnPlan, held: number, seen: number, epoch: number, lease: number, examples: number): ChosenRows {
  const since = Math.min(seen, held);
  const newest = Uint32Array.from({ length: Math.min(examples, held - since) }, (_, i) => held - 1 - i);
  const chosen = new Uint32Array(Math.min(examples, held));
  chosen.set(newest);
  let filled = newest.length;
  // What is newest and was taken has the highest numbers.
  const taken = held - newest.length;
  if (filled < chosen.length) {
    for (const row of epochOrder(held, mix(plan.seed, epoch), lease)) {
      if (row >= taken) continue;
      chosen[filled++] = row;
      if (filled === chosen.length) break;
    }
  }
  const passes = Array.from({ length: plan.passes }, (_, pass) => {
    const order = pass ? epochOrder(chosen.length, mix(plan.seed, epoch, lease), pass).map((place) => chosen[place]) : chosen;
    return spans(order, plan.batch_size);
  });
  return { judged: spans(newest, JUDGED_BATCHES * plan.batch_size), examples: chosen.length, parts: passes.flat(), first_pass: passes[0].length };
}

function spans(rows: Uint32Array, size: number): Uint32Array[] {
  return Array.from({ length: Math.ceil(rows.length / size) }, (_, i) => rows.subarray(i * size, (i + 1) * size));
}

/** Add the labels of some more rows to the counts. Ignores a batch with values that are not classes. */
export function withLabels(counts: number[], rows: Record<string, { type: string; shape: number[]; bytes: Uint8Array }>): number[] {
  const name = LABELS.find((each) => each in rows && rows[each].shape.length === 1 && /^[IU]/.test(rows[each].type));
  if (!name) return counts;
  const labels = wholes(rows[name].type, rows[name].bytes);
  if (!labels.every((label) => label >= 0 && label < LABELS_MAX)) return counts;
  // Not by spreading them: a batch may have more labels than a call takes arguments.
  const length = labels.reduce((most, label) => Math.max(most, label + 1), counts.length);
  const more = Array.from({ length }, (_, i) => counts[i] ?? 0);
  for (const label of labels) more[label] += 1;
  return more;
}

function wholes(type: string, bytes: Uint8Array): number[] {
  const raw = bytes.slice().buffer;
  if (type === "I64") return Array.from(new BigInt64Array(raw), Number);
  return Array.from(type === "U8" ? new Uint8Array(raw) : type === "I8" ? new Int8Array(raw) : type === "I16" ? new Int16Array(raw) : new Int32Array(raw));
}
