// Which examples are in batch i of epoch e, and which numbers a graph draws: bit for bit as `scheduling/batches.py` and
// `trainer/portable/draws.py` have them. SplitMix64 (Steele, Lea and Flood, 2014).

const GAMMA = 0x9e3779b97f4a7c15n;
const MASK = 0xffffffffffffffffn;

type Whole = number | bigint;

export function splitmix64(state: bigint): bigint {
  return finish((state + GAMMA) & MASK);
}

function finish(z: bigint): bigint {
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK;
  return z ^ (z >> 31n);
}

/** Folds numbers into one 64-bit seed; order matters. */
export function mix(...numbers: Whole[]): bigint {
  return numbers.reduce<bigint>((folded, each) => splitmix64(folded ^ (BigInt(each) & MASK)), 0n);
}

/** The order in which an epoch visits `count` examples. */
export function epochOrder(count: number, seed: Whole, epoch: number): Uint32Array {
  const base = mix(seed, epoch);
  const keys = new BigUint64Array(count);
  let state = base;
  for (let i = 0; i < count; i++) {
    state = (state + GAMMA) & MASK;
    keys[i] = finish(state);
  }
  return sortedPlaces(keys);
}

const WINDOW_SHARDS = 8;

/** How many shards are shuffled together: as `scheduling/batches.py` has it. */
export function windowShards(cacheBytes: number, shardBytes: number): number {
  if (!cacheBytes) return WINDOW_SHARDS;
  return Math.max(1, Math.min(WINDOW_SHARDS, Math.floor(cacheBytes / (2 * Math.max(1, shardBytes)))));
}

/** An epoch in windows: shards in a shuffled order, with the rows of every `window` shards shuffled together. */
export class WindowShuffle {
  private readonly starts: number[] = [0];
  private epoch: { epoch: number; order: Uint32Array; ends: number[] } | null = null;
  private shuffled: { epoch: number; window: number; rows: Uint32Array } | null = null;

  constructor(private readonly rows: number[], private readonly seed: Whole, private readonly window: number) {
    for (const count of rows) this.starts.push(this.starts.at(-1)! + count);
  }

  /** The examples at positions `start` to `stop` (exclusive) of an epoch. */
  indices(epoch: number, start: number, stop: number): Uint32Array {
    const { order, ends } = this.windows(epoch);
    const found: number[] = [];
    for (const [number, end] of ends.entries()) {
      const begin = number ? ends[number - 1] : 0;
      if (end <= start || begin >= stop) continue;
      found.push(...this.rowsOf(epoch, number, order).subarray(Math.max(0, start - begin), stop - begin));
    }
    return Uint32Array.from(found);
  }

  private windows(epoch: number): { order: Uint32Array; ends: number[] } {
    if (this.epoch?.epoch !== epoch) {
      const order = epochOrder(this.rows.length, mix(this.seed, 0), epoch);
      const ends: number[] = [];
      let rows = 0;
      for (const [i, shard] of order.entries()) {
        rows += this.rows[shard];
        if ((i + 1) % this.window === 0 || i === order.length - 1) ends.push(rows);
      }
      this.epoch = { epoch, order, ends };
    }
    return this.epoch;
  }

  private rowsOf(epoch: number, number: number, order: Uint32Array): Uint32Array {
    if (this.shuffled?.epoch !== epoch || this.shuffled.window !== number) {
      const rows: number[] = [];
      for (const shard of order.subarray(number * this.window, (number + 1) * this.window)) {
        for (let row = this.starts[shard]; row < this.starts[shard + 1]; row++) rows.push(row);
      }
      const shuffled = epochOrder(rows.length, mix(this.seed, 1 + number), epoch).map((place) => rows[place]);
      this.shuffled = { epoch, window: number, rows: shuffled };
    }
    return this.shuffled.rows;
  }
}

function sortedPlaces(keys: BigUint64Array): Uint32Array {
  const places = new Uint32Array(keys.length).map((_, i) => i);
  return places.sort((a, b) => (keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b));
}

export interface Drawn {
  name: string;
  kind: "uniform" | "normal" | "integers" | "permutation";
  /** In each dimension, so many for each example and so many more. */
  shape: [number, number][];
  low: number;
  high: number;
}

export interface Array_ {
  type: "float32" | "int64";
  data: Float32Array | BigInt64Array;
  dims: number[];
}

export function drawAll(draws: Drawn[], examples: number, seed: bigint): Record<string, Array_> {
  return Object.fromEntries(draws.map((draw, i) => [draw.name, drawn(draw, examples, seed + 2n * BigInt(i))]));
}

function drawn(draw: Drawn, examples: number, seed: bigint): Array_ {
  const dims = draw.shape.map(([each, more]) => each * examples + more);
  const count = dims.reduce((product, side) => product * side, 1);
  if (draw.kind === "uniform") return { type: "float32", data: Float32Array.from(uniform(count, seed)), dims };
  if (draw.kind === "normal") {
    // Box and Muller, 1958.
    const [first, second] = [uniform(count, seed), uniform(count, seed ^ 1n)];
    const made = Float32Array.from(first, (u, i) => Math.sqrt(-2 * Math.log1p(-u)) * Math.cos(2 * Math.PI * second[i]));
    return { type: "float32", data: made, dims };
  }
  if (draw.kind === "integers") {
    const spread = uniform(count, seed);
    const whole = BigInt64Array.from(spread as unknown as ArrayLike<never>, (u: number) =>
      BigInt(draw.low + Math.trunc(u * (draw.high - draw.low))),
    );
    return { type: "int64", data: whole, dims };
  }
  return { type: "int64", data: BigInt64Array.from([...sortedPlaces(bits(count, seed))].map(BigInt)), dims };
}

function bits(count: number, seed: bigint): BigUint64Array {
  let z = (BigInt.asUintN(64, seed) * 0xd1342543de82ef95n) & MASK;
  return new BigUint64Array(count).map(() => {
    z = (z + GAMMA) & MASK;
    return finish(z);
  });
}

/** In [0, 1), with the 24 bits that float32 keeps exactly. */
export function uniform(count: number, seed: bigint): Float64Array {
  return Float64Array.from(bits(count, seed), (z) => Number(z >> 40n) / (1 << 24));
}
