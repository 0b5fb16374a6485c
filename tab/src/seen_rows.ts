// How many of its own rows a device was done with in each job, kept where the rows lie: as `runtime/seen_examples.py` does.

import type { RowSource } from "./parts.ts";

export const SEEN = "seen";
/** Jobs that are remembered, those that were noted last. */
const JOBS_KEPT = 100;

export class SeenRows {
  private constructor(private readonly source: RowSource, private readonly counts: Map<string, number>) {}

  /** What an earlier program wrote down. A text that cannot be read costs one evaluation that is too good, and stops nobody. */
  static async read(source: RowSource): Promise<SeenRows> {
    const counts = new Map<string, number>();
    try {
      const kept = JSON.parse((await source.recall(SEEN)) ?? "null");
      const known = kept?.of === source.place ? Object.entries(kept.counts) : [];
      for (const [job, count] of known) if (Number.isSafeInteger(count) && (count as number) >= 0) counts.set(job, count as number);
    } catch (error) {
      console.info(`all rows count as new: ${error}`);
    }
    return new SeenRows(source, counts);
  }

  count(job: string): number {
    return this.counts.get(job) ?? 0;
  }

  /** A lease was trained when there were this many. */
  async note(job: string, count: number): Promise<void> {
    if (this.counts.get(job) === count) return;
    this.counts.delete(job);
    this.counts.set(job, count);
    for (const oldest of [...this.counts.keys()].slice(0, -JOBS_KEPT)) this.counts.delete(oldest);
    try {
      await this.source.keep(SEEN, JSON.stringify({ of: this.source.place, counts: Object.fromEntries(this.counts) }));
    } catch (error) {
      console.info(`how many rows were seen could not be written down: ${error}`);
    }
  }
}
