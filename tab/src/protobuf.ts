// Messages to and from protobuf's bytes, by the table of `contract.ts`. Pure; knows no sockets.

import { FIELDS, type Field } from "./contract.ts";

/** A message: every field by its name. Absent ones have protobuf's empty value, or null where the contract tells. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export type Plain = Record<string, any>;

export class Violation extends Error {}

const UTF8 = new TextEncoder();
const TEXT = new TextDecoder("utf-8", { fatal: true });
const VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5;

export class Writer {
  private parts: Uint8Array[] = [];
  private size = 0;

  raw(bytes: Uint8Array): void {
    this.parts.push(bytes);
    this.size += bytes.length;
  }

  varint(value: number | bigint): void {
    const out: number[] = [];
    let left = BigInt.asUintN(64, BigInt(value));
    while (left > 0x7fn) {
      out.push(Number(left & 0x7fn) | 0x80);
      left >>= 7n;
    }
    out.push(Number(left));
    this.raw(Uint8Array.from(out));
  }

  field(number: number, bytes: Uint8Array): void {
    this.varint((number << 3) | BYTES);
    this.varint(bytes.length);
    this.raw(bytes);
  }

  done(): Uint8Array {
    const whole = new Uint8Array(this.size);
    let at = 0;
    for (const part of this.parts) {
      whole.set(part, at);
      at += part.length;
    }
    return whole;
  }
}

export function encode(name: string, message: Plain): Uint8Array {
  const out = new Writer();
  for (const [number, key, kind, isRepeated, tellsAbsent] of FIELDS[name]) {
    const value = message[key];
    if (value === undefined || value === null) continue;
    if (isRepeated) writeAll(out, number, kind, value);
    else writeOne(out, number, kind, value, tellsAbsent);
  }
  return out.done();
}

function writeAll(out: Writer, number: number, kind: string, values: Plain[]): void {
  if (kind === "int" || kind === "bool" || kind === "double") {
    if (!values.length) return;
    const packed = new Writer();
    for (const value of values) scalar(packed, kind, value);
    out.field(number, packed.done());
    return;
  }
  for (const value of values) writeOne(out, number, kind, value, true);
}

function scalar(out: Writer, kind: string, value: unknown): void {
  if (kind === "double") {
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setFloat64(0, value as number, true);
    out.raw(bytes);
  } else out.varint(kind === "bool" ? Number(value) : (value as number));
}

function writeOne(out: Writer, number: number, kind: string, value: unknown, always: boolean): void {
  switch (kind) {
    case "string":
    case "bytes": {
      const bytes = kind === "string" ? UTF8.encode(value as string) : (value as Uint8Array);
      if (bytes.length || always) out.field(number, bytes);
      return;
    }
    case "int":
    case "bool":
    case "double":
      if (!always && !value && !Object.is(value, -0)) return;
      out.varint((number << 3) | (kind === "double" ? FIXED64 : VARINT));
      scalar(out, kind, value);
      return;
    default:
      out.field(number, encode(kind, value as Plain));
  }
}

export class Reader {
  constructor(readonly bytes: Uint8Array, public at = 0, readonly end = bytes.length) {}

  varint(): bigint {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (this.at >= this.end) throw new Violation("a message that is cut off");
      const byte = this.bytes[this.at++];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return BigInt.asUintN(64, value);
    }
    throw new Violation("a number that does not end");
  }

  take(size: number): Uint8Array {
    if (size > this.end - this.at) throw new Violation("a message that is cut off");
    const taken = this.bytes.subarray(this.at, this.at + size);
    this.at += size;
    return taken;
  }

  length(): number {
    const size = this.varint();
    if (size > BigInt(this.end - this.at)) throw new Violation("a message that is cut off");
    return Number(size);
  }
}

export function decode(name: string, bytes: Uint8Array): Plain {
  const fields = new Map(FIELDS[name].map((field) => [field[0], field]));
  const message: Plain = {};
  for (const [, key, kind, isRepeated, tellsAbsent] of FIELDS[name]) message[key] = empty(kind, isRepeated, tellsAbsent);
  const reader = new Reader(bytes);
  while (reader.at < reader.end) {
    const tag = Number(reader.varint());
    const field = fields.get(tag >>> 3);
    if (field) read(reader, tag & 7, field, message);
    else skip(reader, tag & 7);
  }
  return message;
}

function empty(kind: string, isRepeated: boolean, tellsAbsent: boolean): unknown {
  if (isRepeated) return [];
  if (tellsAbsent) return null;
  return kind === "string" ? "" : kind === "bytes" ? new Uint8Array() : kind === "bool" ? false : 0;
}

function read(reader: Reader, wire: number, [, key, kind, isRepeated]: Field, into: Plain): void {
  const isNumber = kind === "int" || kind === "bool" || kind === "double";
  if (isNumber && isRepeated && wire === BYTES) {
    const packed = new Reader(reader.take(reader.length()));
    while (packed.at < packed.end) into[key].push(number(packed, kind));
    return;
  }
  const wanted = kind === "double" ? FIXED64 : isNumber ? VARINT : BYTES;
  if (wire !== wanted) throw new Violation(`a field ${key} that is written otherwise than the contract says`);
  const value = isNumber ? number(reader, kind) : bytesOf(reader, kind);
  if (isRepeated) into[key].push(value);
  else into[key] = value;
}

function bytesOf(reader: Reader, kind: string): unknown {
  const bytes = reader.take(reader.length());
  if (kind === "bytes") return bytes.slice();
  return kind === "string" ? TEXT.decode(bytes) : decode(kind, bytes);
}

/** A seed may need all 64 bits: it stays a BigInt then. */
function number(reader: Reader, kind: string): number | bigint | boolean {
  if (kind === "double") {
    const raw = reader.take(8);
    return new DataView(raw.buffer, raw.byteOffset, 8).getFloat64(0, true);
  }
  const value = reader.varint();
  if (kind === "bool") return value !== 0n;
  const signed = BigInt.asIntN(64, value);
  const plain = Number(signed);
  return Number.isSafeInteger(plain) ? plain : signed;
}

function skip(reader: Reader, wire: number): void {
  if (wire === VARINT) reader.varint();
  else if (wire === FIXED64) reader.take(8);
  else if (wire === FIXED32) reader.take(4);
  else if (wire === BYTES) reader.take(reader.length());
  else throw new Violation("a field of a kind that protobuf does not have");
}
