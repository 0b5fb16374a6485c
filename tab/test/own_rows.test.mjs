// The rows of a device's own: chosen as Python chooses them, read from files as Python reads them, and named in errors by file and
// column, never by value.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, statSync, symlinkSync, utimesSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { deflateRawSync } from "node:zlib";
import { chooseRows, withLabels } from "../built/own_lease.mjs";
import { columnsFromPlain, fitted } from "../built/raw_columns.mjs";
import { PrivacyLedger } from "../built/privacy_ledger.mjs";
import { readCsv, readNpz, rowOf, tableOf } from "../built/row_tables.mjs";
import { FolderRows } from "../dist/node.js";

const plain = (parts) => parts.map((part) => Array.from(part));
const text = (lines) => new TextEncoder().encode(lines.join("\n") + "\n");
const X = { name: "x", dtype: "uint8", shape: [2], classes: [] }, Y = { name: "y", dtype: "int64", shape: [], classes: ["cat", "dog"] };
const COLUMNS = [X, Y];
const numbers = ({ type, bytes }) => (type === "I64" ? Array.from(new BigInt64Array(bytes.slice().buffer), Number) : Array.from(bytes));

test("leases have the rows that Python chooses", () => {
  const table = JSON.parse(readFileSync(new URL("own_draws.json", import.meta.url), "utf8"));
  assert.ok(table.length >= 200);
  for (const { judged, parts, first_pass, held, seen, epoch, lease, examples, ...plan } of table) {
    const found = chooseRows(plan, held, seen, epoch, lease, examples);
    assert.deepEqual([plain(found.judged), plain(found.parts), found.first_pass], [judged, parts, first_pass]);
    assert.equal(found.examples, Math.min(examples, held));
  }
  assert.ok(table.some(({ judged }) => judged.length > 1) && table.some(({ judged }) => !judged.length) && table.some(({ passes }) => passes > 2));
});

test("labels are counted by the first column that has a whole number per row", () => {
  const rows = (values) => ({ y: { type: "I64", shape: [values.length], bytes: new Uint8Array(BigInt64Array.from(values, BigInt).buffer) } });
  assert.deepEqual(withLabels([1], rows([2, 0, 2])), [2, 0, 2]);
  assert.deepEqual(withLabels([1], rows([2, -1])), [1]);
  assert.deepEqual(withLabels([1], rows([4096])), [1]);
  assert.deepEqual(withLabels([1], { y: { type: "F32", shape: [1], bytes: new Uint8Array(4) } }), [1]);
});

test("a file of graphs with odd columns is refused", () => {
  assert.deepEqual(columnsFromPlain(COLUMNS), COLUMNS);
  assert.deepEqual(columnsFromPlain(undefined), []);
  const odd = [{ dtype: "float64" }, { shape: [0] }, { shape: [1.5] }, { shape: Array(9).fill(1) }, { shape: [1 << 24, 2] }, { name: "" }, { name: "a\nb" },
    { classes: ["a", "a"] }, { classes: null }, { dtype: "__proto__" }, { name: "y", classes: [], shape: undefined }];
  for (const part of odd) assert.throws(() => columnsFromPlain([{ ...X, ...part }]), /do not describe the columns/, JSON.stringify(part));
  assert.throws(() => columnsFromPlain([X, X]), /one name/);
  assert.throws(() => columnsFromPlain([{ ...X, shape: [2], classes: ["a"] }]), /cannot have these classes/);
});

test("values are converted where nothing is lost", () => {
  const to = (dtype, data, from = "int64", classes = []) => numbers(fitted({ dtype: from, shape: [data.length], data }, { name: "v", dtype, shape: [], classes }));
  assert.deepEqual(to("uint8", [0n, 255n]), [0, 255]);
  assert.throws(() => to("uint8", [256n]), /^Error: column v has values of int64 that uint8 cannot hold$/);
  assert.throws(() => to("int64", [1.5], "float64"), /cannot hold/);
  assert.throws(() => to("float32", [1e39], "float64"), /not a finite number/);
  assert.throws(() => to("float32", [2n ** 24n + 1n]), /cannot hold/);
  assert.throws(() => to("int64", [3n], "int64", ["a", "b"]), /outside its 2 classes/);
});

test("a CSV file is read by the names of its first line, and grows", () => {
  const table = readCsv(text(["y,note,x.1,x.0", 'dog,"a, ""b""",2,1', "0,,4,3"]), COLUMNS);
  assert.equal(table.count, 2);
  const { x, y } = table.take([1, 0]);
  assert.deepEqual([numbers(x), x.shape, numbers(y)], [[3, 4, 1, 2], [2, 2], [0, 1]]);
  assert.equal(readCsv(new TextEncoder().encode("y,x.0,x.1\ncat,1,2\ndog,1"), COLUMNS).count, 1, "the last line is on its way");
  assert.throws(() => readCsv(text(["y,x.0"]), COLUMNS), /its first line does not name x\.1/);
  for (const line of ["bird,1,2", "dog,secret,2", "dog,300,2", "7,1,2"]) {
    assert.throws(() => readCsv(text(["y,x.0,x.1", line]), COLUMNS).take([0]), (error) => /column [xy]/.test(error.message) && !/bird|secret|300|7/.test(error.message));
  }
});

test("a whole number of a CSV file has 64 bits, and a long line is read once", () => {
  const plainY = { ...Y, classes: [] };
  const read = (value) => new BigInt64Array(readCsv(text(["y", value]), [plainY]).take([0]).y.bytes.buffer)[0];
  assert.deepEqual(["-9223372036854775808", "+9223372036854775807", "000000000000000000000007"].map(read), [-(2n ** 63n), 2n ** 63n - 1n, 7n]);
  for (const value of ["9223372036854775808", "99999999999999999999", "9".repeat(1_000_000)]) {
    assert.throws(() => read(value), /^Error: row 1: column y is not int64$/);
  }
  // 16 times the time would be four times the line, squared.
  const seconds = [50_000, 200_000].map((count) => {
    const file = text(["y,x", '"1",'.repeat(count)]), began = process.cpuUsage();
    assert.throws(() => readCsv(file, [plainY]).take([0]), /line 2: \d+ values for 2 columns/);
    return process.cpuUsage(began).user;
  });
  assert.ok(seconds[1] < 10 * seconds[0] + 1e5, `${seconds}`);
});

test("a file that would take more memory than there is is refused by what it says of itself", async () => {
  const file = npz({ x: npy("|u1", [1, 2], Uint8Array.of(1, 2)), y: npy("<i8", [1], BigInt64Array.of(0n)) }, true);
  const view = new DataView(file.buffer, file.byteOffset, file.length);
  for (let at = 0; at < file.length - 46; at++) if (view.getUint32(at, true) === 0x02014b50) view.setUint32(at + 24, 600 << 20, true);
  await assert.rejects(readNpz(file, COLUMNS), /^Error: its arrays have more than 1073741824 bytes$/);
  const lines = new Uint8Array(9 << 20).fill(10);
  lines[0] = "y".charCodeAt(0);
  assert.throws(() => readCsv(lines, [Y]), /more than 4194304 lines: write \.npz/);
});

test("an archive of numpy is read, packed or not, and a broken one refused", async () => {
  for (const isPacked of [false, true]) {
    const table = await readNpz(npz({ x: npy("|u1", [3, 2], Uint8Array.of(1, 2, 3, 4, 5, 6)), y: npy("<i8", [3], BigInt64Array.of(0n, 1n, 0n)) }, isPacked), COLUMNS);
    const { x, y } = table.take([2, 1]);
    assert.deepEqual([table.count, numbers(x), numbers(y)], [3, [5, 6, 3, 4], [0, 1]]);
  }
  const whole = npz({ x: npy("|u1", [1, 2], Uint8Array.of(1, 2)), y: npy("<i8", [1], BigInt64Array.of(0n)) }, true);
  await assert.rejects(readNpz(whole.subarray(0, whole.length - 30), COLUMNS), /not a complete archive/);
  await assert.rejects(readNpz(npz({ x: npy("|u1", [1, 3], Uint8Array.of(1, 2, 3)) }, false), COLUMNS), /column x is uint8 \[3\]; the task declares uint8 \[2\]/);
  await assert.rejects(readNpz(npz({ x: npy("|u1", [2, 2], new Uint8Array(4)), y: npy("<i8", [1], BigInt64Array.of(0n)) }, false), COLUMNS), /1 and 2 rows/);
  await assert.rejects(readNpz(npz({ y: npy("<i8", [1], BigInt64Array.of(0n)) }, false), COLUMNS), /column x is missing/);
});

test("rows that a program made or a person wrote are held to the columns", () => {
  const table = tableOf({ x: { dtype: "uint8", shape: [2, 2], data: [1, 2, 3, 4] }, y: { dtype: "int64", shape: [2], data: [0n, 1n] } }, COLUMNS);
  const { x, y } = table.take([1]);
  assert.deepEqual([table.count, numbers(x), x.shape, numbers(y)], [2, [3, 4], [1, 2], [1]]);
  assert.throws(() => tableOf({ x: { dtype: "uint8", shape: [1, 2], data: [1, 2] } }, COLUMNS), /column y is missing/);
  const short = { x: { dtype: "uint8", shape: [1, 2], data: [1, 2] }, y: { dtype: "int64", shape: [2], data: [0n, 1n] } };
  assert.throws(() => tableOf(short, COLUMNS), /1 and 2 rows/);
  const odd = [{ ...Y, name: 'a, "b"' }, { name: "heat", dtype: "float32", shape: [], classes: [] }];
  const row = rowOf({ 'a, "b"': "dog", heat: "1.5" }, odd).take([0]);
  assert.deepEqual([numbers(row['a, "b"']), new Float32Array(row.heat.bytes.buffer)[0]], [[1], 1.5]);
  assert.throws(() => rowOf({ heat: "1.5" }, odd).take([0]), /not one of its 2 classes/);
});

test("a folder's newest rows come last, also where an older file grows", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "shoal-rows-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const write = (name, lines, at) => {
    writeFileSync(join(folder, name), text(["y,x.0,x.1", ...lines]));
    utimesSync(join(folder, name), at, at);
  };
  const source = new FolderRows(folder, join(folder, "notes"));
  const rows = await source.open(COLUMNS);
  assert.equal(await rows.look(), 0);
  write("b.csv", ["cat,1,1"], 1);
  write("a.csv", ["cat,2,2"], 2);
  assert.equal(await rows.look(), 2);
  write("b.csv", ["cat,1,1", "dog,3,3"], 3);
  assert.equal(await rows.look(), 3);
  assert.deepEqual(numbers((await rows.take([0, 1, 2])).x), [1, 1, 2, 2, 3, 3]);
  rmSync(join(folder, "a.csv"));
  assert.equal(await rows.look(), 2);
  write("c.csv", ["bird,1,1"], 4);
  assert.equal(await rows.look(), 3);
  await assert.rejects(rows.take([2]), { message: "c.csv: column y has a text that is not one of its 2 classes" });
  // A link that leads nowhere or to a folder, and a pipe, which would be read for ever, hold no rows.
  symlinkSync(join(folder, "nowhere"), join(folder, "d.csv"));
  symlinkSync(folder, join(folder, "e.csv"));
  execFileSync("mkfifo", [join(folder, "f.csv")]);
  assert.equal(await rows.look(), 3);
  // What is noted outlives the process, and nobody else may read it.
  assert.equal(await source.recall("seen"), null);
  await source.keep("seen", "7");
  assert.equal(await new FolderRows(folder, join(folder, "notes")).recall("seen"), "7");
  assert.equal(statSync(join(folder, "notes", "seen")).mode & 0o777, 0o600);
  await assert.rejects(source.keep("../seen", ""), /named by letters/);
});

function npy(kind, shape, values) {
  const header = `{'descr': '${kind}', 'fortran_order': False, 'shape': (${shape.join(", ")},), }\n`;
  const start = Buffer.from([0x93, ...Buffer.from("NUMPY"), 1, 0, header.length & 255, header.length >> 8]);
  return Buffer.concat([start, Buffer.from(header), Buffer.from(values.buffer)]);
}

/** An archive as numpy.savez writes it, without sums: nothing here reads them. */
function npz(arrays, isPacked) {
  const locals = [], entries = [];
  let at = 0;
  for (const [name, bytes] of Object.entries(arrays)) {
    const called = Buffer.from(`${name}.npy`), packed = isPacked ? deflateRawSync(bytes) : bytes;
    const local = Buffer.alloc(30), entry = Buffer.alloc(46);
    local.writeUInt32LE(0x04034b50, 0);
    local.writeUInt16LE(called.length, 26);
    entry.writeUInt32LE(0x02014b50, 0);
    entry.writeUInt16LE(isPacked ? 8 : 0, 10);
    entry.writeUInt32LE(packed.length, 20);
    entry.writeUInt32LE(bytes.length, 24);
    entry.writeUInt16LE(called.length, 28);
    entry.writeUInt32LE(at, 42);
    locals.push(local, called, packed);
    entries.push(entry, called);
    at += 30 + called.length + packed.length;
  }
  const end = Buffer.alloc(22);
  end.writeUInt32LE(0x06054b50, 0);
  end.writeUInt16LE(Object.keys(arrays).length, 10);
  end.writeUInt32LE(at, 16);
  return new Uint8Array(Buffer.concat([...locals, ...entries, end]));
}

test("a participation is durable before it counts, and an account that cannot be read stops the device", async (t) => {
  const folder = mkdtempSync(join(tmpdir(), "shoal-rows-"));
  t.after(() => rmSync(folder, { recursive: true }));
  const privacy = { epsilon: 8, delta: 1e-4, clip: 1, participations: 3, apart: 1, versions: 10 };
  const source = new FolderRows(folder, join(folder, "notes"));
  const ledger = await PrivacyLedger.read(source, "job-1", privacy);
  await ledger.note(1, 4);
  await ledger.note(2, 5);
  assert.deepEqual((await PrivacyLedger.read(source, "job-1", privacy)).taken, [[1, 4], [2, 5]]);
  const path = join(folder, "notes", "privacy-job-1.json"), kept = JSON.parse(readFileSync(path, "utf8"));
  assert.ok(kept.epsilon > 0 && kept.epsilon < 8 && kept.delta === 1e-4);
  writeFileSync(path, JSON.stringify({ ...kept, participations: [[1, -4]] }));
  await assert.rejects(PrivacyLedger.read(source, "job-1", privacy), /it takes no part/);
  // A disk that writes nothing: what was not written down has not left.
  const broken = { ...source, recall: async () => null, keep: () => Promise.reject(new Error("the disk is full")) };
  const full = await PrivacyLedger.read(broken, "job-1", privacy);
  await assert.rejects(full.note(1, 0), /the disk is full/);
  assert.deepEqual(full.taken, []);
});
