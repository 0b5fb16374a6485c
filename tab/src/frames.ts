// Messages and their tensors to and from frames, as `wire/frames.py` has them. Pure; knows no sockets.

import { TAGS } from "./contract.ts";
import { decode, encode, type Plain, Reader, Violation, Writer } from "./protobuf.ts";

export const CHUNK_BYTES = 1 << 20;
export const ENVELOPE_MAX_BYTES = 256 << 10;
/** The largest model that a tab takes: the tab holds it several times. */
export const PAYLOAD_MAX_BYTES = 256 << 20;

const NAMES = new Map(Object.entries(TAGS).map(([name, tag]) => [tag, name]));

export type Tensors = Record<string, Float32Array>;
export interface Message {
  kind: string;
  body: Plain;
  tensors: Tensors;
}

/** The frames of a message. Its tensors are float32: a tab has no others. */
export function* frames(kind: string, body: Plain, tensors: Tensors = {}): Generator<Uint8Array> {
  const envelope = new Writer();
  for (const [name, values] of Object.entries(tensors)) {
    envelope.field(1, encode("TensorInfo", { name, dtype: "float32", shape: [values.length] }));
  }
  envelope.field(TAGS[kind], encode(kind, body));
  const payload = joined(Object.values(tensors));
  const head = new Writer();
  head.field(1, envelope.done());
  const odd = payload.length % CHUNK_BYTES || Math.min(CHUNK_BYTES, payload.length);
  if (payload.length) head.field(2, payload.subarray(0, odd));
  yield head.done();
  for (let at = odd; at < payload.length; at += CHUNK_BYTES) {
    const chunk = new Writer();
    chunk.field(2, payload.subarray(at, at + CHUNK_BYTES));
    yield chunk.done();
  }
}

function joined(arrays: Float32Array[]): Uint8Array {
  const whole = new Uint8Array(arrays.reduce((sum, array) => sum + array.byteLength, 0));
  let at = 0;
  for (const array of arrays) {
    whole.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), at);
    at += array.byteLength;
  }
  return whole;
}

/** Puts messages together, frame by frame. */
export class Assembly {
  private waiting: { kind: string; body: Plain; infos: Plain[]; into: Uint8Array; filled: number } | null = null;

  /** The message that this frame completes; null: more is to come. */
  take(frame: Uint8Array): Message | null {
    const { envelope, chunk } = parts(frame);
    if (envelope) {
      if (this.waiting) throw new Violation("a message where a chunk was expected");
      const { kind, body, infos } = opened(envelope);
      const size = infos.reduce((sum, info) => sum + sizeOf(info), 0);
      if (size > PAYLOAD_MAX_BYTES) throw new Violation(`${kind} of ${size} bytes, at most ${PAYLOAD_MAX_BYTES} are taken`);
      if (!size && chunk) throw new Violation(`a chunk with ${kind}, which announced no tensors`);
      this.waiting = { kind, body, infos, into: new Uint8Array(size), filled: 0 };
    } else if (!this.waiting || !chunk) throw new Violation("a chunk where a message was expected");
    const waiting = this.waiting!;
    if (chunk) {
      const left = waiting.into.length - waiting.filled;
      const due = left % CHUNK_BYTES || CHUNK_BYTES;
      if (!left || chunk.length !== due) throw new Violation(`a chunk of ${chunk.length} bytes where ${due} were announced`);
      waiting.into.set(chunk, waiting.filled);
      waiting.filled += chunk.length;
    }
    if (waiting.filled < waiting.into.length) return null;
    this.waiting = null;
    const tensors: Tensors = {};
    let at = 0;
    for (const info of waiting.infos) {
      const size = sizeOf(info);
      tensors[info.name] = new Float32Array(waiting.into.buffer.slice(at, at + size));
      at += size;
    }
    return { kind: waiting.kind, body: waiting.body, tensors };
  }
}

/** The chunk of a frame that must be one. */
export function chunkOf(frame: Uint8Array): Uint8Array {
  const { envelope, chunk } = parts(frame);
  if (envelope || !chunk) throw new Violation("a message where a chunk was expected");
  return chunk;
}

function parts(frame: Uint8Array): { envelope: Uint8Array | null; chunk: Uint8Array | null } {
  const reader = new Reader(frame);
  const found: (Uint8Array | null)[] = [null, null];
  for (const number of [1, 2]) {
    if (reader.at < reader.end && frame[reader.at] === ((number << 3) | 2)) {
      reader.at += 1;
      const size = reader.length();
      if (size > (number === 1 ? ENVELOPE_MAX_BYTES : CHUNK_BYTES)) throw new Violation(`a field of ${size} bytes`);
      found[number - 1] = reader.take(size);
    }
  }
  if (reader.at !== reader.end) throw new Violation("a frame that holds neither an envelope nor a chunk, or more");
  return { envelope: found[0], chunk: found[1] };
}

function opened(envelope: Uint8Array): { kind: string; body: Plain; infos: Plain[] } {
  const reader = new Reader(envelope);
  const infos: Plain[] = [];
  let found: { kind: string; body: Plain } | null = null;
  while (reader.at < reader.end) {
    const tag = Number(reader.varint());
    if ((tag & 7) !== 2) throw new Violation("an envelope that is none");
    const bytes = reader.take(reader.length());
    if (tag >>> 3 === 1) infos.push(decode("TensorInfo", bytes));
    else {
      const kind = NAMES.get(tag >>> 3);
      // What a tab does not know is not for it.
      found = kind ? { kind, body: decode(kind, bytes) } : { kind: "", body: {} };
    }
  }
  if (!found) throw new Violation("an envelope with no message");
  return { ...found, infos };
}

function sizeOf(info: Plain): number {
  if (info.dtype !== "float32") throw new Violation(`a tensor of type ${info.dtype}: a tab takes float32`);
  const size = (info.shape as number[]).reduce((product, side) => product * side, 4);
  if (!(size >= 0 && Number.isSafeInteger(size))) throw new Violation("a tensor with an impossible shape");
  return size;
}
