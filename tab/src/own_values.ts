// A device's own part of a model from lease to lease, as `learning/own_values.py` has it, kept where the rows lie: a lease goes
// on from it, also in the next program. Decides nothing. `own_part.ts` decides when a lease is settled.

import type { RowSource } from "./parts.ts";

/** Of the names that own parts are kept under. They were made of the rows, so they go with them. */
export const OWN = "own-";
/** The jobs that have one, those that this device began last at the end. No job is called so. */
const JOBS = `${OWN}jobs`;
const JOBS_KEPT = 20;
/** Of a job, as `wire/messages/base.py` has it. */
const ID = /^[a-z0-9][a-z0-9-]{0,62}$/;

export class OwnValues {
  /** The result of a lease, until the leader has answered. */
  private made_: { lease: number; values: Float32Array } | null = null;
  /** The leases that were taken last, each with what it began with. */
  private taken: { lease: number; before: Float32Array }[] = [];
  private isListed = false;

  /** `values`: what the next lease begins with. */
  private constructor(private readonly source: RowSource, private readonly job: string, private readonly layout: string, public values: Float32Array) {}

  /** What an earlier program kept, or `first` if there is none. A text that cannot be read, or is of another model, is set aside. */
  static async read(source: RowSource, job: string, layout: string, first: Float32Array): Promise<OwnValues> {
    let kept: Float32Array | null = null;
    try {
      const text = await source.recall(nameOf(job));
      if (text) kept = valuesOf(text, job, layout, first.length);
    } catch (error) {
      console.info(`the device's own part of the model begins again: ${error}`);
    }
    return new OwnValues(source, job, layout, kept ?? first.slice());
  }

  made(lease: number, values: Float32Array): void {
    this.made_ = { lease, values };
  }

  /** Go on from what this lease made, durably; or from what was there before it. `undoable`: how many of the leases that were
   * taken last may be taken back. */
  async settle(lease: number, taken: boolean, undoable: number): Promise<void> {
    if (this.made_?.lease === lease) {
      const { values } = this.made_;
      this.made_ = null;
      if (!taken) return;
      this.taken = [...this.taken, { lease, before: this.values }].slice(-undoable);
      this.values = values;
      await this.keep();
    } else if (!taken && this.taken.at(-1)?.lease === lease) {
      // Refused after all.
      await this.undo(1);
    }
  }

  /** Go back, durably, to what was there before the leases that were taken last. */
  async undo(leases: number): Promise<void> {
    const back = this.taken.slice(-leases);
    if (!back.length) return;
    this.values = back[0].before;
    this.taken = this.taken.slice(0, -back.length);
    await this.keep();
  }

  /** If it cannot be written, the next program goes on from an older one. */
  private async keep(): Promise<void> {
    try {
      await this.list();
      await this.source.keep(nameOf(this.job), JSON.stringify({ job: this.job, layout: this.layout, values: packed(this.values) }));
    } catch (error) {
      console.info(`the device's own part of the model could not be written down: ${error}`);
    }
  }

  /** Note that this job has one, and let go of those of the oldest jobs. */
  private async list(): Promise<void> {
    if (this.isListed) return;
    const listed: unknown = await this.source.recall(JOBS).then((text) => JSON.parse(text || "[]")).catch(() => []);
    // A list that is damaged must not keep this job's part from being written.
    const isOther = (each: unknown) => typeof each === "string" && ID.test(each) && each !== this.job;
    const jobs: string[] = [...(Array.isArray(listed) ? listed.filter(isOther) : []), this.job];
    for (const oldest of jobs.slice(0, -JOBS_KEPT)) await this.source.keep(nameOf(oldest), "");
    await this.source.keep(JOBS, JSON.stringify(jobs.slice(-JOBS_KEPT)));
    this.isListed = true;
  }
}

function nameOf(job: string): string {
  return `${OWN}${job}.json`;
}

/** As text, four letters for three bytes. */
function packed(values: Float32Array): string {
  const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  const parts: string[] = [];
  // A call takes so many arguments.
  for (let at = 0; at < bytes.length; at += 0x2000) parts.push(String.fromCharCode(...bytes.subarray(at, at + 0x2000)));
  return btoa(parts.join(""));
}

/** The values of a text that was kept. Fails if it is of another job or another model, or if no lease could begin with them. */
function valuesOf(text: string, job: string, layout: string, size: number): Float32Array {
  const told = parsed(text);
  const isOfIt = told?.job === job && told.layout === layout && typeof told.values === "string" && told.values.length === lettersOf(size);
  if (!isOfIt) throw new Error("it is of another model");
  const values = unpacked(told.values);
  // Each lease would diverge, and none of them would be taken, so it would never end.
  if (!values.every(Number.isFinite)) throw new Error("it has values that are not finite");
  return values;
}

/** As JSON. An error of the parser has a piece of the text, which belongs in no log. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
function parsed(text: string): any {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("it is damaged");
  }
}

function lettersOf(values: number): number {
  return Math.ceil((values * Float32Array.BYTES_PER_ELEMENT) / 3) * 4;
}

function unpacked(text: string): Float32Array {
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  // `Uint8Array.from` makes a list of all letters first, which takes some 25 times as much memory as the values.
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return new Float32Array(bytes.buffer);
}
