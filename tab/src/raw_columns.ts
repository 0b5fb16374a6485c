// The columns of a device's own rows as a job declares them, and values converted to them: as `data/raw_columns.py` and
// `data/raw_values.py` have it. Pure. Errors name a column and never a value: a device reports them, and its rows stay with it.

import type { Rows } from "./examples.ts";

export interface RawColumn {
  name: string;
  dtype: string;
  /** Of one row. */
  shape: number[];
  /** The names of the values 0, 1, ...; empty if they have none. */
  classes: string[];
}

/** Values of one type, in rows. */
export interface Values { dtype: string; shape: number[]; data: ArrayLike<number | bigint> }

const COLUMNS_MAX = 32;
const NAME_MAX_CHARS = 64;
const DIMENSIONS_MAX = 8;
const SIZE_MAX = 1 << 24;
const ROW_MAX_BYTES = 16 << 20;
const CLASSES_MAX = 1000;
const CLASS_MAX_CHARS = 128;

type Made = Uint8Array | Int8Array | Int16Array | Int32Array | BigInt64Array | Float32Array;

interface Type {
  /** As files of tensors name it. */
  stored: string;
  bytes: number;
  make(count: number): Made;
  /** The smallest and the largest whole number; null if it holds fractions. */
  range: [bigint, bigint] | null;
}

const whole = (bits: number, isSigned = true): [bigint, bigint] =>
  isSigned ? [-(1n << BigInt(bits - 1)), (1n << BigInt(bits - 1)) - 1n] : [0n, (1n << BigInt(bits)) - 1n];

export const DTYPES: Record<string, Type> = {
  uint8: { stored: "U8", bytes: 1, make: (count) => new Uint8Array(count), range: whole(8, false) },
  int8: { stored: "I8", bytes: 1, make: (count) => new Int8Array(count), range: whole(8) },
  int16: { stored: "I16", bytes: 2, make: (count) => new Int16Array(count), range: whole(16) },
  int32: { stored: "I32", bytes: 4, make: (count) => new Int32Array(count), range: whole(32) },
  int64: { stored: "I64", bytes: 8, make: (count) => new BigInt64Array(count), range: whole(64) },
  float32: { stored: "F32", bytes: 4, make: (count) => new Float32Array(count), range: null },
  bool: { stored: "BOOL", bytes: 1, make: (count) => new Uint8Array(count), range: [0n, 1n] },
};

export const sizeOf = (shape: number[]) => shape.reduce((product, side) => product * side, 1);

/** Read the columns that the file of a job's graphs names, which is not trusted. */
export function columnsFromPlain(plain: unknown): RawColumn[] {
  if (plain === undefined) return [];
  if (!Array.isArray(plain) || plain.length > COLUMNS_MAX) throw wrong(`they are at most ${COLUMNS_MAX}`);
  const columns = plain.map(checked);
  if (new Set(columns.map(({ name }) => name)).size < columns.length) throw wrong("two columns have one name");
  if (columns.reduce((sum, { dtype, shape }) => sum + DTYPES[dtype].bytes * sizeOf(shape), 0) > ROW_MAX_BYTES) throw wrong(`a row has more than ${ROW_MAX_BYTES} bytes`);
  return columns;
}

function checked(plain: unknown): RawColumn {
  const { name, dtype, shape, classes } = (plain ?? {}) as Partial<RawColumn>;
  if (!isName(name, NAME_MAX_CHARS)) throw wrong(`a name has 1 to ${NAME_MAX_CHARS} printable characters`);
  if (typeof dtype !== "string" || !Object.hasOwn(DTYPES, dtype)) throw wrong(`column ${name} has an unknown type`);
  const isSized = Array.isArray(shape) && shape.length <= DIMENSIONS_MAX && shape.every((size) => Number.isInteger(size) && size >= 1 && size <= SIZE_MAX);
  if (!isSized) throw wrong(`column ${name} has a shape beyond the limits`);
  if (!Array.isArray(classes) || classes.length > CLASSES_MAX || !classes.every((each) => isName(each, CLASS_MAX_CHARS))) throw wrong(`column ${name} has classes beyond the limits`);
  if (new Set(classes).size < classes.length || (classes.length && (shape.length || !dtype.includes("int")))) throw wrong(`column ${name} cannot have these classes`);
  return { name, dtype, shape, classes };
}

function wrong(why: string): Error {
  return new Error(`these do not describe the columns of a device's rows: ${why}`);
}

function isName(text: unknown, most: number): text is string {
  // As Python's isprintable: of spaces only the plain one.
  return typeof text === "string" && Array.from(text).length <= most && /^[^\p{C}\p{Zl}\p{Zp}\p{Zs}]+$/u.test(text.replaceAll(" ", "_"));
}

/** Such as `uint8 [28, 28]`. */
export function described({ dtype, shape }: { dtype: string; shape: number[] }): string {
  return shape.length ? `${dtype} [${shape.join(", ")}]` : dtype;
}

/** Rows of one column in the declared type. Fails if they do not fit or would lose digits. */
export function fitted(values: Values, column: RawColumn): Rows {
  checkForm(values, column);
  const { name, dtype, shape, classes } = column;
  const { stored, make, range } = DTYPES[dtype];
  const { data } = values;
  const made = make(data.length);
  for (let i = 0; i < data.length; i++) {
    if (values.dtype !== dtype && !isHeld(data[i], range, values.dtype)) throw new Error(`column ${name} has values of ${values.dtype} that ${dtype} cannot hold`);
    made[i] = (dtype === "int64" ? BigInt(data[i]) : Number(data[i])) as never;
    if (!range && !Number.isFinite(made[i])) throw new Error(`column ${name} has a value that is not a finite number`);
    if (classes.length && !(made[i] >= 0 && made[i] < classes.length)) throw new Error(`column ${name} has a value outside its ${classes.length} classes`);
  }
  return { type: stored, shape: [values.shape[0], ...shape], bytes: new Uint8Array(made.buffer) };
}

/** Whether a type holds a value without loss. Digits beyond float32 are of no use to a model of float32; those of a whole
 * number may be. */
function isHeld(value: number | bigint, range: [bigint, bigint] | null, from: string): boolean {
  if (!range) return from.startsWith("float") || BigInt(Math.fround(Number(value))) === BigInt(value);
  if (typeof value === "number" && !Number.isInteger(value)) return false;
  return value >= range[0] && value <= range[1];
}

/** Refuse values of another type or shape than the column's, before any is read. */
export function checkForm({ dtype, shape }: { dtype: string; shape: number[] }, column: RawColumn): void {
  const row = shape.slice(1);
  if (shape.length && row.join() === column.shape.join()) return;
  throw new Error(`column ${column.name} is ${described({ dtype, shape: row })}; the task declares ${described(column)}`);
}

/** The value of a class that is given by its name, or by its number. */
export function classOf(text: string, { name, classes }: RawColumn): bigint {
  const known = classes.indexOf(text);
  if (known >= 0) return BigInt(known);
  // A longer number is of no class, and would take long to read.
  if (/^-?\d{1,18}$/.test(text)) return BigInt(text);
  throw new Error(`column ${name} has a text that is not ${classes.length ? `one of its ${classes.length} classes` : "a whole number"}`);
}
