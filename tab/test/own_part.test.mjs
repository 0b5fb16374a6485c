// How many leases a device can take back, which bounds the copies of its own part in memory. Recorded lives seldom get so far.

import assert from "node:assert/strict";
import { test } from "node:test";
import { Worker } from "../built/worker_role.mjs";

const values = Float32Array.of(1);

test("no more than eight leases can be taken back, however late a leader makes versions durable", () => {
  const worker = new Worker("job-1", "manager", 1, { data: "local", pace: "sync", trust: "identity" });
  for (const event of [{ event: "Started" }, { event: "Prepared", has_own: true }, { event: "Connected", node: "manager" }]) worker.handle(event);
  const work = (lease, fields) => worker.handle({
    event: "Received", kind: "Work", tensors: { model: values },
    body: {
      job: "job-1", term: 1, lease, kind: "train", version: lease - 1, began: 0, durable_version: 0, epoch: 0, batches: [lease],
      deadline_s: 9, credit: true, examples: 1, rate: 0, ...fields,
    },
  });
  const settled = [];
  for (let lease = 1; lease <= 12; lease++) {
    settled.push(...work(lease).filter(({ action }) => action === "SettleOwn").map(({ taken, undoable }) => taken && undoable));
    worker.handle({ event: "Trained", lease, examples: 1, loss_sum: 1, seconds: 1, tensors: { delta: values } });
  }
  assert.deepEqual(settled, [1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8]);
  worker.handle({ event: "Reassigned", term: 2, leader: "manager" });
  // The update that nobody has spoken of is lost too.
  const told = work(1, { term: 2, version: 0 }).filter(({ action }) => /Own$/.test(action));
  assert.deepEqual(told.map(({ action, leases, taken }) => [action, leases ?? taken]), [["SettleOwn", false], ["UndoOwn", 8]]);
});
