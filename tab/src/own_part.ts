// The device's own part of a model goes on from a lease only if the update of that lease was taken. Decides as
// `roles/worker/own_part.py` does: the shared part goes on without an update that the leader refused or that nobody knows
// of, so the own part goes back to how it was before.

import type { Plain } from "./protobuf.ts";

export type OwnAction =
  /** Go on, durably, from what this lease made if `taken`, else from what was there before. `undoable`: how many of the
   * leases that were taken last may still be taken back, this one among them. */
  | { action: "SettleOwn"; lease: number; taken: boolean; undoable: number }
  /** Go back, durably, to what was there before the last leases that were taken: a new leader's history lacks their updates. */
  | { action: "UndoOwn"; leases: number };

/** The most leases that can be taken back when a leader is lost with versions that were not durable. Each keeps a copy of the
 * own part in memory. */
const UNDOABLE_MAX = 8;

interface Made { term: number; lease: number; version: number }

export class OwnPart {
  /** Whether the model has one. */
  isThere = false;
  /** Of the update that the leader has not spoken about yet. `isInDoubt`: the session ended after it was sent. */
  private open: (Made & { isInDoubt: boolean }) | null = null;
  /** The updates that were taken last. Nobody knows yet that they are durable. */
  private taken_: Made[] = [];

  /** `isInStep`: a version is made of the updates of all leases on the one before, so an update is in the history if the version
   * after its own is. */
  constructor(private readonly isInStep: boolean, private readonly act: (action: OwnAction) => void, private readonly record: (kind: string, reason: string) => void) {}

  /** An update was made; the device has the own part that belongs to it. */
  trained({ term, lease, version }: Plain): void {
    if (this.isThere) this.open = { term, lease, version, isInDoubt: false };
  }

  /** The leader of this term spoke after the update was sent, and did not refuse it. Messages come in order. */
  taken(term: number): void {
    const { open } = this;
    // A new leader tells with its first lease which versions it knows.
    if (!open || open.term !== term) return;
    if (open.isInDoubt) return this.lost();
    this.taken_ = [...this.taken_, open].slice(-UNDOABLE_MAX);
    this.act({ action: "SettleOwn", lease: open.lease, taken: true, undoable: this.taken_.length });
    this.open = null;
  }

  /** Nobody knows whether the update came. The versions of a new leader will show it. */
  inDoubt(): void {
    if (this.open) this.open.isInDoubt = true;
  }

  /** The leader of this term began from version `began`, and `durable_version` is the newest one that is durable. */
  onWork({ term, began, durable_version: durable }: Plain): void {
    if (this.open && this.open.term < term) {
      if (this.isInStep && this.open.version < began) {
        this.open.isInDoubt = false;
        this.taken(this.open.term);
      } else this.lost();
    }
    let lost = 0;
    for (let last = this.taken_.at(-1); last && last.term < term && last.version >= began; last = this.taken_.at(-1)) {
      this.taken_.pop();
      lost += 1;
    }
    // The last may still be refused, after a word that was on its way before the update came.
    while (this.taken_.length > 1 && this.taken_[0].version < durable) this.taken_.shift();
    if (!lost) return;
    this.record("residual.dropped", `the job goes on from version ${began}, without ${lost} of our updates: the own part goes back`);
    this.act({ action: "UndoOwn", leases: lost });
  }

  /** The update will not be sent, or nobody knows whether it came. */
  lost(): void {
    if (this.open) this.act({ action: "SettleOwn", lease: this.open.lease, taken: false, undoable: 1 });
    this.open = null;
  }

  /** The leader says that it merged this update before. */
  merged({ term, lease }: Plain): void {
    if (this.open?.term === term && this.open?.lease === lease) this.taken(term);
  }

  /** Also after a word of the leader that was on its way before the update came. */
  refused({ term, lease }: Plain): void {
    const last = this.taken_.at(-1);
    if (this.open?.term === term && this.open?.lease === lease) this.lost();
    else if (last?.term === term && last?.lease === lease) {
      this.act({ action: "SettleOwn", lease, taken: false, undoable: 1 });
      this.taken_.pop();
    }
  }
}
