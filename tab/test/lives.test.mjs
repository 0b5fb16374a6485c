// The worker of this package decides as Python's does: recorded lives, which `python tools/tasks.py tab` writes. The project's
// own tests play 10,000 fresh ones.

import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { play } from "./traces.mjs";

test("recorded lives of Python's worker are decided alike", async () => {
  const counts = await play(fileURLToPath(new URL("lives.jsonl.gz", import.meta.url)));
  assert.equal(counts.differences, 0);
  assert.ok(counts.traces >= 300 && counts.actions > 5 * counts.traces, JSON.stringify(counts));
});
