// A device's own account of a private job, in a text that outlives the program: as `runtime/privacy_ledger.py` keeps it. A
// text that cannot be read or written stops the device: one that does not know how often it took part takes no part.

import type { RowSource } from "./parts.ts";
import { countsOf } from "./participation.ts";
import { epsilonOf, type Privacy, spentOf } from "./privacy.ts";

export class PrivacyLedger {
  private constructor(private readonly source: RowSource, private readonly job: string, private readonly privacy: Privacy, private taken_: [number, number][]) {}

  static async read(source: RowSource, job: string, privacy: Privacy): Promise<PrivacyLedger> {
    try {
      const kept = JSON.parse((await source.recall(nameOf(job))) ?? JSON.stringify({ job, participations: [] }));
      const isRight = (pair: unknown) => Array.isArray(pair) && pair.length === 2 && pair.every((each) => Number.isSafeInteger(each) && each >= 0);
      if (kept.job !== job || !kept.participations.every(isRight)) throw new Error("it is of another job, or has impossible numbers");
      return new PrivacyLedger(source, job, privacy, kept.participations);
    } catch (error) {
      throw new Error(`the device's account of this private job cannot be read (${(error as Error).message}): it takes no part`);
    }
  }

  get taken(): [number, number][] {
    return [...this.taken_];
  }

  /** Write down a participation. It is durable when this resolves. */
  async note(term: number, version: number): Promise<void> {
    const taken: [number, number][] = [...this.taken_, [term, version]];
    const epsilon = epsilonOf(this.privacy, spentOf(this.privacy, countsOf(taken)));
    await this.source.keep(nameOf(this.job), JSON.stringify({ job: this.job, participations: taken, epsilon, delta: this.privacy.delta }));
    this.taken_ = taken;
  }
}

function nameOf(job: string): string {
  return `privacy-${job}.json`;
}
