// A device's own part of a model: it goes on from leases whose updates were taken, and outlives the program.

import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { firstModel } from "../built/first_model.mjs";
import { Device, leaving } from "../dist/index.js";
import { OwnValues } from "../built/own_values.mjs";
import { FolderRows } from "../dist/node.js";

const FIRST = Float32Array.of(1, 2, 3), LAYOUT = '[["2.weight",[3],"parameter"]]';
const filled = (value) => new Float32Array(3).fill(value);

function source(t) {
  const folder = mkdtempSync(join(tmpdir(), "shoal-own-"));
  t.after(() => rmSync(folder, { recursive: true }));
  return new FolderRows(folder, join(folder, "notes"));
}

const read = (rows, { job = "job-1", layout = LAYOUT } = {}) => OwnValues.read(rows, job, layout, FIRST);
const now = ({ values }) => Array.from(values);
const kept = async (rows, options) => now(await read(rows, options));

test("it goes on from a lease that was taken, and from before one that was refused", async (t) => {
  const rows = source(t), own = await read(rows);
  assert.deepEqual(now(own), [1, 2, 3]);
  own.made(1, filled(4));
  assert.deepEqual(now(own), [1, 2, 3], "nobody has spoken yet");
  await own.settle(1, true, 1);
  assert.deepEqual([now(own), await kept(rows)], [[4, 4, 4], [4, 4, 4]]);
  own.made(2, filled(5));
  await own.settle(2, false, 1);
  assert.deepEqual([now(own), await kept(rows)], [[4, 4, 4], [4, 4, 4]]);
  // Another lease than the one that was made settles nothing.
  own.made(3, filled(6));
  await own.settle(2, true, 1);
  assert.deepEqual(now(own), [4, 4, 4]);
  // A lease that was taken is refused after all.
  await own.settle(3, true, 2);
  await own.settle(3, false, 1);
  assert.deepEqual([now(own), await kept(rows)], [[4, 4, 4], [4, 4, 4]]);
});

test("it goes back by as many leases as a new leader lacks, and no further than it was told", async (t) => {
  const rows = source(t), own = await read(rows);
  for (const lease of [1, 2, 3, 4]) {
    own.made(lease, filled(10 * lease));
    await own.settle(lease, true, Math.min(lease, 3));
  }
  await own.undo(2);
  assert.deepEqual([now(own), await kept(rows)], [[20, 20, 20], [20, 20, 20]]);
  await own.undo(5);
  assert.deepEqual(now(own), [10, 10, 10]);
  await own.undo(1);
  assert.deepEqual(now(own), [10, 10, 10]);
});

test("one of another job or another model is set aside, and so is one that cannot be read", async (t) => {
  const rows = source(t), own = await read(rows);
  own.made(1, filled(4));
  await own.settle(1, true, 1);
  assert.deepEqual(await kept(rows, { job: "job-2" }), [1, 2, 3]);
  assert.deepEqual(await kept(rows, { layout: '[["3.weight",[3],"parameter"]]' }), [1, 2, 3]);
  const text = await rows.recall("own-job-1.json");
  const having = (values) => text.replace(/"values":"[^"]*"/, `"values":${JSON.stringify(values)}`);
  const lettersOf = (...values) => Buffer.from(Float32Array.from(values).buffer).toString("base64");
  const unlike = [having("AAAA"), having("A".repeat(1 << 20)), having(3), having(lettersOf(1, NaN, 3)), having(lettersOf(1, 2, -Infinity))];
  for (const odd of ["", "{", "null", "[]", text.slice(0, -4), text.replace("job-1", "job-2"), ...unlike]) {
    await rows.keep("own-job-1.json", odd);
    assert.deepEqual(await kept(rows), [1, 2, 3], odd.slice(0, 200));
  }
});

test("nothing of a damaged text is printed", async (t) => {
  const rows = source(t), said = [];
  t.mock.method(console, "info", (line) => said.push(line));
  await rows.keep("own-job-1.json", '{"job":"job-1","values":"AACAQAAAgEAA"ACAQ"}');
  assert.deepEqual(await kept(rows), [1, 2, 3]);
  assert.deepEqual(said, ["the device's own part of the model begins again: Error: it is damaged"]);
});

test("a list of jobs that is damaged keeps no part from being written", async (t) => {
  const outside = Array.from({ length: 25 }, (_, i) => `../job-${i}`);
  for (const odd of ["{", "null", "5", '{"jobs":[]}', "[3, null]", JSON.stringify(outside)]) {
    const rows = source(t), own = await read(rows);
    await rows.keep("own-jobs", odd);
    own.made(1, filled(4));
    await own.settle(1, true, 1);
    assert.deepEqual([await kept(rows), JSON.parse(await rows.recall("own-jobs"))], [[4, 4, 4], ["job-1"]], odd);
  }
});

test("a job that begins while rows are deleted finds no own part", async (t) => {
  const rows = source(t), own = await read(rows);
  own.made(1, filled(4));
  await own.settle(1, true, 1);
  let isOver = false;
  rows.forget = async () => {
    await new Promise((resolve) => setTimeout(resolve, 50));
    await rows.keep("own-job-1.json", "");
    isOver = true;
    throw new Error("the disk is full");
  };
  const device = new Device({ rows, engine: { threads: 1 } });
  const deleting = assert.rejects(device.forgetRows(), /full/);
  const found = await device.ownValues("job-1", LAYOUT, FIRST);
  assert.deepEqual([isOver, now(found)], [true, [1, 2, 3]]);
  await deleting;
  // What could not be deleted stops no later job.
  assert.deepEqual(now(await device.ownValues("job-1", LAYOUT, FIRST)), [1, 2, 3]);
});

test("values come back bit by bit, however many there are", async (t) => {
  const rows = source(t), many = Float32Array.from({ length: 100_001 }, (_, i) => Math.sin(i) * 2 ** ((i % 200) - 100));
  const own = await OwnValues.read(rows, "job-1", LAYOUT, many.map(() => 0));
  own.made(1, many);
  await own.settle(1, true, 1);
  const { values } = await OwnValues.read(rows, "job-1", LAYOUT, many.map(() => 0));
  assert.ok(Buffer.from(values.buffer).equals(Buffer.from(many.buffer)));
});

test("a device that cannot write goes on, and keeps the parts of its last jobs only", async (t) => {
  const broken = { recall: async () => null, keep: () => Promise.reject(new Error("the disk is full")) };
  const full = await read(broken);
  full.made(1, filled(4));
  await full.settle(1, true, 1);
  assert.deepEqual(now(full), [4, 4, 4]);
  const rows = source(t);
  for (let number = 0; number < 22; number++) {
    const own = await read(rows, { job: `job-${number}` });
    own.made(1, filled(number));
    await own.settle(1, true, 1);
  }
  const found = await Promise.all([0, 1, 2, 21].map((number) => kept(rows, { job: `job-${number}` })));
  assert.deepEqual(found, [[1, 2, 3], [1, 2, 3], [2, 2, 2], [21, 21, 21]]);
  const sizes = readdirSync(join(rows.place, "notes"));
  assert.equal(sizes.length, 23);
});

test("a first model says which part of it stays, and one that is too large is refused", () => {
  const file = (own) => {
    const values = new Uint8Array(Float32Array.of(1, 2, 3).buffer);
    const layout = '[["a",[2],"parameter"],["b",[1],"buffer"]]';
    const header = Buffer.from(JSON.stringify({
      __metadata__: { layout, ...(own ? { own: JSON.stringify(own) } : {}) },
      a: { dtype: "F32", shape: [2], data_offsets: [0, 8] }, b: { dtype: "F32", shape: [1], data_offsets: [8, 12] },
    }));
    const size = Buffer.alloc(8);
    size.writeBigUInt64LE(BigInt(header.length));
    return new Uint8Array(Buffer.concat([size, header, values]));
  };
  const plain = firstModel(file(null));
  assert.deepEqual([Array.from(plain.first), plain.parameters, plain.own], [[1, 2, 3], 2, null]);
  const { own } = firstModel(file([["head", [4, 2], "parameter"], ["mean", [3], "buffer"]]));
  assert.deepEqual([own.values, own.parameters, own.text], [11, 8, '[["head",[4,2],"parameter"],["mean",[3],"buffer"]]']);
  assert.throws(() => firstModel(file([["head", [1 << 22, 2], "parameter"]])), /33554432 bytes, and this device keeps at most 16777216/);
});

test("the list of what leaves says what stays", () => {
  const offer = { columns: [], shares_labels: false, epsilon: 0, delta: 0, participations: 0 };
  const stays = (keeps_part) => leaving({ ...offer, keeps_part }, "Node").filter((line) => /never sent/.test(line)).length;
  assert.deepEqual([stays(undefined), stays(false), stays(true)], [0, 0, 1]);
});
