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
