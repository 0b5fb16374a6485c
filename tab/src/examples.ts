// A job's examples, in shards that are fetched when a batch needs them.

import { readTensors, type Stored } from "./safetensors.ts";

export interface Rows { type: string; shape: number[]; bytes: Uint8Array }

export interface ShardEntry { sha256: string; examples: number; bytes: number }

/** Fetches a blob by its hash. */
export type Fetch = (sha256: string) => Promise<Uint8Array>;

interface Shard extends ShardEntry {
  first: number;
  columns: Map<string, Stored> | null;
}

/** Columns of rows of one shape. Example i is row i of all shards in their order. */
export class Examples {
  private readonly shards: Shard[] = [];
  readonly count: number;

  /** `window`: how many shards are shuffled together, and twice as many stay in memory; 0: all of them. */
  constructor(entries: ShardEntry[], private readonly fetch: Fetch, readonly window = 0) {
    let first = 0;
    for (const entry of entries) {
      this.shards.push({ ...entry, first, columns: null });
      first += entry.examples;
    }
    this.count = first;
  }

  get rows(): number[] {
    return this.shards.map(({ examples }) => examples);
  }

  /** Bring every shard here: a batch of a set that is shuffled as a whole is in all of them. */
  async fetchAll(): Promise<void> {
    for (const number of this.shards.keys()) await this.open(number);
  }

  async take(numbers: ArrayLike<number>): Promise<Record<string, Rows>> {
    const homes = Array.from(numbers, (number) => this.shardOf(number));
    const needed = [...new Set(homes)];
    for (const shard of needed) await this.open(shard);
    const found: Record<string, Rows> = {};
    for (const [name, { dtype, shape, bytes: all }] of this.shards[needed[0] ?? 0].columns!) {
      const rowBytes = all.length / shape[0];
      const bytes = new Uint8Array(rowBytes * numbers.length);
      for (let i = 0; i < numbers.length; i++) {
        const { first, columns } = this.shards[homes[i]];
        const at = (numbers[i] - first) * rowBytes;
        bytes.set(columns!.get(name)!.bytes.subarray(at, at + rowBytes), i * rowBytes);
      }
      found[name] = { type: dtype, shape: [numbers.length, ...shape.slice(1)], bytes };
    }
    this.shut(new Set(needed));
    return found;
  }

  private async open(number: number): Promise<void> {
    const shard = this.shards[number];
    if (shard.columns) return;
    const { tensors, notes } = readTensors(await this.fetch(shard.sha256));
    if (notes.columns && Object.keys(JSON.parse(notes.columns)).length) throw new Error("columns of text or of unequal rows, which no graph takes");
    for (const { shape } of tensors.values()) {
      if (shape[0] !== shard.examples) throw new Error(`a shard of ${shape[0]} examples where the job says ${shard.examples}`);
    }
    shard.columns = tensors;
  }

  /** Let go of shards beyond those that may stay, except these. */
  private shut(needed: Set<number>): void {
    if (!this.window) return;
    const open = this.shards.flatMap(({ columns }, i) => (columns && !needed.has(i) ? [i] : []));
    for (const i of open.slice(0, Math.max(0, open.length + needed.size - 2 * this.window))) this.shards[i].columns = null;
  }

  private shardOf(number: number): number {
    let low = 0, high = this.shards.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.shards[middle].first <= number) low = middle;
      else high = middle - 1;
    }
    return low;
  }
}
