// Reads a safetensors file that its hash has proven: the header is checked against the size all the same.

export interface Stored {
  dtype: string;
  shape: number[];
  bytes: Uint8Array;
}

const HEADER_MAX_BYTES = 4 << 20;
export const ITEM_BYTES: Record<string, number> = {
  BOOL: 1, U8: 1, I8: 1, U16: 2, I16: 2, F16: 2, BF16: 2, U32: 4, I32: 4, F32: 4, U64: 8, I64: 8, F64: 8,
};

export function readTensors(file: Uint8Array): { tensors: Map<string, Stored>; notes: Record<string, string> } {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = file.byteLength < 8 ? Infinity : Number(view.getBigUint64(0, true));
  if (length > HEADER_MAX_BYTES || length > file.byteLength - 8) throw new Error("not a safetensors file");
  const header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(file.subarray(8, 8 + length)));
  const { __metadata__: notes = {}, ...entries } = header;
  const tensors = new Map<string, Stored>();
  for (const [name, entry] of Object.entries(entries as Record<string, any>)) {
    const [begin, end] = entry.data_offsets as [number, number];
    const size = (entry.shape as number[]).reduce((product, side) => product * side, ITEM_BYTES[entry.dtype] ?? NaN);
    if (!(begin >= 0 && end - begin === size && 8 + length + end <= file.byteLength)) {
      throw new Error(`a safetensors file whose tensor ${name} does not fit`);
    }
    tensors.set(name, { dtype: entry.dtype, shape: entry.shape, bytes: file.subarray(8 + length + begin, 8 + length + end) });
  }
  return { tensors, notes };
}

/** The values as float32, copied out of the file. */
export function asFloats(stored: Stored): Float32Array {
  const raw = stored.bytes.slice().buffer;
  switch (stored.dtype) {
    case "F32": return new Float32Array(raw);
    case "F64": return Float32Array.from(new Float64Array(raw));
    case "I64": return Float32Array.from(new BigInt64Array(raw), Number);
    case "I32": return Float32Array.from(new Int32Array(raw));
    case "U8": case "BOOL": return Float32Array.from(new Uint8Array(raw));
    default: throw new Error(`a model with values of type ${stored.dtype}, which a tab does not read`);
  }
}
