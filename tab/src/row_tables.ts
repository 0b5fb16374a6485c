// Files that have many rows, as bytes: .npz and .csv, by the columns that a job declares. As `data/row_files.py` reads them.
// Pure. Errors name a column or a row and never a value: a device reports them, and its rows stay with it.

import type { Rows } from "./examples.ts";
import { cut } from "./gathered_rows.ts";
import { checkForm, classOf, described, fitted, type RawColumn, sizeOf, type Values } from "./raw_columns.ts";

/** Rows of one file. */
export interface RowTable {
  count: number;
  /** The rows with these numbers, by column. */
  take(rows: ArrayLike<number>): Record<string, Rows>;
}

/** The fields of a CSV file that one column may have: a longer line is a sign of a wrong shape. */
const FIELDS_MAX = 1 << 16;
const LINE_MAX_CHARS = 1 << 20;
/** Each line is an object: more of them than memory has would end the program. */
const LINES_MAX = 1 << 22;
/** What the arrays of an archive may take once they are unpacked. */
const ARRAYS_MAX_BYTES = 1 << 30;
/** An archive ends with a record of 22 bytes and a comment, whose length has 16 bits. */
const END_MAX_BYTES = 22 + 0xffff;
const TRUTHS: Record<string, number> = { "0": 0, "1": 1, false: 0, true: 1 };
const BROKEN = "this is not a complete archive of arrays";

/** numpy's types -> ours, and how to read them. */
const NUMPY: Record<string, [string, (bytes: ArrayBuffer) => ArrayLike<number | bigint>]> = {
  "|u1": ["uint8", (bytes) => new Uint8Array(bytes)], "|i1": ["int8", (bytes) => new Int8Array(bytes)],
  "|b1": ["bool", (bytes) => new Uint8Array(bytes).map((each) => Number(each !== 0))],
  "<i2": ["int16", (bytes) => new Int16Array(bytes)], "<u2": ["uint16", (bytes) => new Uint16Array(bytes)],
  "<i4": ["int32", (bytes) => new Int32Array(bytes)], "<u4": ["uint32", (bytes) => new Uint32Array(bytes)],
  "<i8": ["int64", (bytes) => new BigInt64Array(bytes)], "<u8": ["uint64", (bytes) => new BigUint64Array(bytes)],
  "<f4": ["float32", (bytes) => new Float32Array(bytes)], "<f8": ["float64", (bytes) => new Float64Array(bytes)],
};

/** Read a file by the end of its name. */
export async function readTable(name: string, bytes: Uint8Array, columns: RawColumn[]): Promise<RowTable> {
  return /\.npz$/i.test(name) ? readNpz(bytes, columns) : readCsv(bytes, columns);
}

/** Rows that a program made, by column. Fails if they do not fit. */
export function tableOf(values: Record<string, Values>, columns: RawColumn[]): RowTable {
  const whole: Record<string, Uint8Array> = {}, lengths = new Set<number>();
  for (const column of columns) {
    const given = values[column.name];
    if (!given) throw new Error(`column ${column.name} is missing`);
    whole[column.name] = fitted(given, column).bytes;
    lengths.add(given.shape[0]);
  }
  const [count] = lengths;
  if (lengths.size !== 1) throw new Error(`its columns have ${[...lengths].sort((a, b) => a - b).join(" and ")} rows`);
  return { count, take: (rows) => cut(columns, whole, rows) };
}

/** One row that a person wrote into a form: a text for each column. */
export function rowOf(texts: Record<string, string>, columns: RawColumn[]): RowTable {
  const quoted = (parts: string[]) => parts.map((part) => `"${part.replaceAll('"', '""')}"`).join(",");
  const lines = [quoted(columns.map(({ name }) => name)), quoted(columns.map(({ name }) => texts[name] ?? ""))];
  return readCsv(new TextEncoder().encode(`${lines.join("\n")}\n`), columns);
}

// numpy's archive: one array per column -------------------------------------------------------------------------

/** A member of a zip file, and its size once it is unpacked. */
interface Member { size: number; unpack(): Promise<Uint8Array> }
interface Stored { dtype: string; shape: number[]; itemBytes: number; read(bytes: ArrayBuffer): ArrayLike<number | bigint>; bytes: Uint8Array }

export async function readNpz(file: Uint8Array, columns: RawColumn[]): Promise<RowTable> {
  const members = membersOf(file);
  const arrays = new Map<string, Stored>();
  // Together, before any is unpacked: a small file may hold many large ones.
  const total = columns.reduce((sum, { name }) => sum + (members.get(`${name}.npy`)?.size ?? 0), 0);
  if (total > ARRAYS_MAX_BYTES) throw new Error(`its arrays have more than ${ARRAYS_MAX_BYTES} bytes`);
  for (const column of columns) {
    const member = members.get(`${column.name}.npy`);
    if (!member) throw new Error(`column ${column.name} is missing`);
    const array = arrayOf(await member.unpack(), column);
    checkForm(array, column);
    arrays.set(column.name, array);
  }
  const lengths = [...new Set([...arrays.values()].map(({ shape }) => shape[0]))].sort((a, b) => a - b);
  if (lengths.length !== 1) throw new Error(`its columns have ${lengths.join(" and ")} rows`);
  return {
    count: lengths[0],
    take: (rows) => Object.fromEntries(columns.map((column) => [column.name, fitted(gathered(arrays.get(column.name)!, rows), column)])),
  };
}

function gathered({ dtype, shape, itemBytes, read, bytes }: Stored, rows: ArrayLike<number>): Values {
  const rowBytes = sizeOf(shape.slice(1)) * itemBytes;
  const taken = new Uint8Array(rowBytes * rows.length);
  for (let i = 0; i < rows.length; i++) taken.set(bytes.subarray(rows[i] * rowBytes, (rows[i] + 1) * rowBytes), i * rowBytes);
  return { dtype, shape: [rows.length, ...shape.slice(1)], data: read(taken.buffer) };
}

/** Of a zip file: what unpacks each member, by name (PKWARE's APPNOTE 6.3, sections 4.3.7, 4.3.12 and 4.3.16). */
function membersOf(file: Uint8Array): Map<string, Member> {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  let end = file.length - 22;
  const least = Math.max(0, file.length - END_MAX_BYTES);
  while (end >= least && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < least) throw new Error(BROKEN);
  const found = new Map<string, Member>();
  try {
    let at = view.getUint32(end + 16, true);
    for (let left = view.getUint16(end + 10, true); left > 0; left--) {
      if (view.getUint32(at, true) !== 0x02014b50) throw new Error(BROKEN);
      const [method, packed, size] = [view.getUint16(at + 10, true), view.getUint32(at + 20, true), view.getUint32(at + 24, true)];
      const [name, extra, comment] = [28, 30, 32].map((place) => view.getUint16(at + place, true));
      const header = view.getUint32(at + 42, true);
      const called = new TextDecoder().decode(file.subarray(at + 46, at + 46 + name));
      const from = header + 30 + view.getUint16(header + 26, true) + view.getUint16(header + 28, true);
      found.set(called, { size, unpack: () => unpacked(file.subarray(from, from + packed), method, size) });
      at += 46 + name + extra + comment;
    }
  } catch {
    // A place outside the file, or a file of more than 4 GB, whose places stand elsewhere.
    throw new Error(BROKEN);
  }
  return found;
}

async function unpacked(packed: Uint8Array, method: number, size: number): Promise<Uint8Array> {
  if (method === 0 && packed.length === size) return packed;
  if (method !== 8) throw new Error(BROKEN);
  const whole = new Uint8Array(size);
  let filled = 0;
  try {
    const reader = new Blob([packed as BlobPart]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) {
      // Fails where it would be longer than it says.
      whole.set(part.value, filled);
      filled += part.value.length;
    }
  } catch {
    throw new Error(BROKEN);
  }
  if (filled !== size) throw new Error(BROKEN);
  return whole;
}

/** One .npy file: a header that says what the values are (NEP 1), then the values. */
function arrayOf(file: Uint8Array, { name }: RawColumn): Stored {
  const isLong = file[6] > 1, start = isLong ? 12 : 10;
  if (file.length < start || new TextDecoder("latin1").decode(file.subarray(1, 6)) !== "NUMPY") throw new Error(BROKEN);
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = isLong ? view.getUint32(8, true) : view.getUint16(8, true);
  const header = new TextDecoder("latin1").decode(file.subarray(start, start + length));
  const [, kind] = /'descr':\s*'([^']*)'/.exec(header) ?? [];
  const [, sides] = /'shape':\s*\(([\d,\s]*)\)/.exec(header) ?? [];
  const shape = sides?.split(",").map((side) => side.trim()).filter(Boolean).map(Number);
  if (!kind || !shape?.length || !(kind in NUMPY)) throw new Error(`column ${name} is not an array with a value per row`);
  if (/'fortran_order':\s*True/.test(header) && shape.length > 1) throw new Error(`column ${name} is stored by columns: save it with numpy.ascontiguousarray`);
  const [dtype, read] = NUMPY[kind];
  const itemBytes = Number(kind.slice(2)), bytes = file.subarray(start + length);
  if (bytes.length !== sizeOf(shape) * itemBytes) throw new Error(BROKEN);
  return { dtype, shape, itemBytes, read, bytes };
}

// Comma-separated values -----------------------------------------------------------------------------------------

/** The first line names fields: a column, or with a shape its values by number (x.0, x.1, ...). */
export function readCsv(file: Uint8Array, columns: RawColumn[]): RowTable {
  let text: string, breaks = 0;
  for (let at = 0; at < file.length; at++) breaks += Number(file[at] === 10 || file[at] === 13);
  if (breaks > 2 * LINES_MAX) throw new Error(`it has more than ${LINES_MAX} lines: write .npz`);
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(file);
  } catch {
    throw new Error("it is not text in UTF-8");
  }
  const lines = text.split(/\r\n|\n|\r/);
  // A last line that no line break ends may still be on its way: it counts once it has all its values.
  const tail = lines.pop() ?? "";
  const [first, ...body] = lines.length ? lines : [tail];
  const names = fieldsOf(first ?? "", 1);
  if (new Set(names).size < names.length) throw new Error("two columns of its first line have the same name");
  const rows = body.map((line, i) => ({ line, number: i + 2 })).filter(({ line }) => line !== "");
  if (lines.length && tail && isWhole(tail, names.length)) rows.push({ line: tail, number: lines.length + 1 });
  const places = columns.map((column) => fieldsNamed(column).map((field) => {
    const place = names.indexOf(field);
    if (place < 0) throw new Error(`its first line does not name ${field}`);
    return place;
  }));
  return {
    count: rows.length,
    take: (wanted) => {
      const texts = Array.from(wanted, (row) => {
        const fields = fieldsOf(rows[row].line, rows[row].number);
        if (fields.length !== names.length) throw new Error(`line ${rows[row].number}: ${fields.length} values for ${names.length} columns`);
        return fields;
      });
      return Object.fromEntries(columns.map((column, i) => {
        const data = texts.flatMap((fields, row) => places[i].map((place) => parsed(fields[place], column, wanted[row] + 1)));
        const dtype = column.dtype === "float32" ? "float64" : "int64";
        return [column.name, fitted({ dtype, shape: [wanted.length, ...column.shape], data }, column)];
      }));
    },
  };
}

function fieldsNamed(column: RawColumn): string[] {
  const size = sizeOf(column.shape);
  if (size > FIELDS_MAX) throw new Error(`column ${column.name} has ${size} values per row; a CSV file takes ${FIELDS_MAX}: write .npz`);
  return column.shape.length ? Array.from({ length: size }, (_, i) => `${column.name}.${i}`) : [column.name];
}

function isWhole(line: string, fields: number): boolean {
  try {
    return fieldsOf(line, 0).length === fields;
  } catch {
    return false;
  }
}

/** The fields of one line (RFC 4180, where a quoted field ends on its own line). */
function fieldsOf(line: string, number: number): string[] {
  if (line.length > LINE_MAX_CHARS) throw new Error(`line ${number} is too long`);
  if (!line.includes('"')) return line.split(",");
  const fields: string[] = [];
  // Each character is looked at once: a line may have a million.
  const quoted = /"((?:[^"]|"")*)"(?=,|$)/y, plain = /[^,]*/y;
  for (let at = 0; at <= line.length; ) {
    const isQuoted = line[at] === '"', form = isQuoted ? quoted : plain;
    form.lastIndex = at;
    const found = form.exec(line);
    if (!found) throw new Error(`line ${number}: a quoted value does not end`);
    fields.push(isQuoted ? found[1].replaceAll('""', '"') : found[0]);
    at += found[0].length + 1;
  }
  return fields;
}

function parsed(text: string, column: RawColumn, row: number): number | bigint {
  const { name, dtype, classes } = column;
  const found = dtype === "bool" ? TRUTHS[text.trim().toLowerCase()]
    : dtype === "float32" ? fraction(text.trim())
    : classes.length ? classOf(text, column)
    : whole(text.trim());
  if (found === undefined) throw new Error(`row ${row}: column ${name} is not ${described({ dtype, shape: [] })}`);
  return found;
}

/** A whole number of 64 bits in decimal digits. */
function whole(text: string): bigint | undefined {
  const [, sign, digits] = /^([+-]?)0*(\d{1,19})$/.exec(text) ?? [];
  if (!digits) return undefined;
  const found = BigInt(sign === "-" ? `-${digits}` : digits);
  return BigInt.asIntN(64, found) === found ? found : undefined;
}

/** A number in decimal digits; one that is not finite is refused with its column. */
function fraction(text: string): number | undefined {
  if (/^[+-]?(inf(inity)?|nan)$/i.test(text)) return NaN;
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) ? Number(text) : undefined;
}
