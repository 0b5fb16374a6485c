// A device's own account in a private job: how often it took part, and whether it may again. Decides as
// `roles/worker/participation.py` does. An update leaves once its participation is durable, and none is ever given back.

import { allows, type Privacy, spentOf } from "./privacy.ts";
import type { Plain } from "./protobuf.ts";

export class Participation {
  /** [term, version] of every update that left. */
  private taken: [number, number][] = [];
  /** [term, lease] of the update that is being counted, and of the last one that was. */
  private asked = "";
  private counted = "";
  private underWay = 0;

  constructor(readonly privacy: Privacy) {}

  restore(taken: [number, number][]): void {
    this.taken = [...taken];
  }

  /** Why the device must skip this version; null: it may take part. */
  refusal(work: Plain): string | null {
    if (work.kind !== "train") return null;
    const { participations, apart, epsilon } = this.privacy;
    const often = this.taken.length + this.underWay;
    if (often >= participations) return `this device took part ${often} times, of ${participations} that the plan allows`;
    const last = this.last(work.term);
    if (last !== null && work.version < last + apart) {
      return `this device took part in version ${last}, and takes part again ${apart} versions later, not in version ${work.version}`;
    }
    return allows(this.privacy, this.counts(work.term)) ? null : `this device would spend more than the epsilon of ${epsilon} that the plan promises it`;
  }

  isCounted({ term, lease }: Plain): boolean {
    return this.counted === `${term} ${lease}`;
  }

  /** Whether its participation has to be made durable now. */
  asks({ term, lease }: Plain): boolean {
    if (this.asked === `${term} ${lease}`) return false;
    this.asked = `${term} ${lease}`;
    this.underWay += 1;
    return true;
  }

  onCounted({ term, version, lease }: { term: number; version: number; lease: number }): void {
    this.underWay = Math.max(0, this.underWay - 1);
    this.taken.push([term, version]);
    this.counted = `${term} ${lease}`;
    // Another one may have been requested since.
    if (this.asked === this.counted) this.asked = "";
  }

  onNotCounted(): void {
    this.asked = "";
    this.underWay = Math.max(0, this.underWay - 1);
  }

  /** The state of the device with its account, so that the leader sends no lease that it would decline. */
  told(state: Plain | null, term: number): Plain {
    const left = allows(this.privacy, this.counts(term)) ? this.privacy.participations - this.taken.length : 0;
    return {
      ...state, participations: this.taken.length, participations_left: Math.max(0, left), spent: spentOf(this.privacy, countsOf(this.taken)), spent_version: this.last(term),
    };
  }

  private last(term: number): number | null {
    const versions = this.taken.flatMap(([at, version]) => (at === term ? [version] : []));
    return versions.length ? Math.max(...versions) : null;
  }

  /** The participations in each noise sequence, with one more in that of this term. */
  private counts(term: number): number[] {
    return countsOf([[term, 0], ...this.taken]);
  }
}

/** How many of these are in each term. */
export function countsOf(taken: [number, number][]): number[] {
  const counts = new Map<number, number>();
  for (const [term] of taken) counts.set(term, (counts.get(term) ?? 0) + 1);
  return [...counts.values()];
}
