// The worker of one job in a tab: decides as `roles/worker/worker.py` does, for a plan that a tab may work for: shared data, whole
// updates to one leader, no codec. Events in, actions out; no clock, no socket, no chance. Recorded traces of the Python
// role hold the two together (`tab/test/traces.mjs`).

import type { Tensors } from "./frames.ts";
import type { Plain } from "./protobuf.ts";

export interface MetricSum { name: string; kind: string; sums: number[]; lower: boolean }

export type Event =
  | { event: "Started" }
  | { event: "Prepared" }
  | { event: "PrepareFailed"; reason: string; traceback: string }
  | { event: "Connected"; node: string }
  | { event: "Disconnected"; node: string }
  | { event: "Reassigned"; term: number; leader: string }
  | { event: "Received"; kind: string; body: Plain; tensors: Tensors }
  | { event: "Trained"; lease: number; examples: number; loss_sum: number; seconds: number; tensors: Tensors }
  | { event: "EvaluationDone"; lease: number; examples: number; metrics: MetricSum[] }
  | { event: "TrainerFailed"; lease: number; reason: string; traceback: string }
  | { event: "TimerFired"; name: string }
  | { event: "StopRequested"; reason: string };

export type Action =
  | { action: "Send"; to: string; kind: string; body: Plain; tensors: Tensors }
  | { action: "SetTimer"; name: string; after_s: number }
  | { action: "CancelTimer"; name: string }
  | { action: "Record"; kind: string; reason: string }
  | { action: "Prepare" }
  | { action: "Train"; lease: number; epoch: number; batches: number[]; rate: number; version: number; tensors: Tensors }
  | { action: "Evaluate"; lease: number; chunks: number[]; size: number; tensors: Tensors }
  | { action: "Interrupt"; lease: number; reason: string }
  | { action: "End"; reason: string };

/** Waits between attempts to start a broken trainer again. */
const RETRY_S = [0, 1, 2, 5, 10, 30];
const REASON_MAX_CHARS = 4096;
const TRACEBACK_MAX_CHARS = 8192;
const DEADLINE = "lease-deadline", RETRY = "retry", ASK = "ask-again";
const SENT = "the update was sent; waiting for the next version";
/** As [term, version]: the trainer holds no model. */
const NOTHING_HELD: [number, number] = [0, -1];

interface Held {
  work: Plain;
  result: { kind: "Update" | "Evaluated"; body: Plain; tensors: Tensors } | null;
}

export class Worker {
  phase = "preparing";
  reason = "fetching the task and its data";
  private isConnected = false;
  private isPrepared = false;
  private held: Held | null = null;
  private holds = NOTHING_HELD;
  private newest: [number, number] = [0, 0];
  private failures = 0;
  private retryWaits = false;
  private actions: Action[] = [];

  constructor(private readonly job: string, private leader: string, private term: number) {}

  /** The lease that it holds; null: none. */
  get work(): Plain | null {
    return this.held?.work ?? null;
  }

  handle(event: Event): Action[] {
    this.on(event);
    const actions = this.actions;
    this.actions = [];
    return actions;
  }

  private on(event: Event): void {
    switch (event.event) {
      case "Started": return this.act({ action: "Prepare" });
      case "Prepared":
        this.isPrepared = true;
        this.holds = NOTHING_HELD;
        return this.askForWork();
      case "PrepareFailed": return this.onPrepareFailed(event.reason, event.traceback);
      case "Connected":
        if (event.node === this.leader) this.onLeaderConnected();
        return;
      case "Disconnected":
        if (event.node !== this.leader) return;
        this.isConnected = false;
        // A model may have been on its way.
        this.holds = NOTHING_HELD;
        return;
      case "Reassigned": return this.onReassigned(event.term, event.leader);
      case "Received": return this.onMessage(event.kind, event.body, event.tensors);
      case "Trained":
      case "EvaluationDone": return this.onResult(event);
      case "TrainerFailed": return this.onTrainerFailed(event.lease, event.reason, event.traceback);
      case "TimerFired": return this.onTimer(event.name);
      case "StopRequested": return this.act({ action: "End", reason: event.reason });
    }
  }

  // Messages ----------------------------------------------------------------------------------------------------

  private onMessage(kind: string, body: Plain, tensors: Tensors): void {
    switch (kind) {
      case "Work": return this.onWork(body, tensors);
      case "Go":
        if (this.held && isOf(this.held, body) && this.held.result?.kind === "Update") {
          this.become("waiting", SENT);
          this.send(this.held.result.kind, this.held.result.body, this.held.result.tensors);
          this.held = null;
        }
        return;
      case "Wait":
        this.become("waiting", body.reason);
        if (body.retry_after_s) this.timer(ASK, body.retry_after_s);
        return;
      case "UpdateRefused": return this.onRefused(body);
      case "Finished":
        this.cancel(DEADLINE);
        return this.act({ action: "End", reason: body.reason });
    }
  }

  private onWork(work: Plain, tensors: Tensors): void {
    if (work.term < this.term || !this.isPrepared) return;
    this.term = work.term;
    this.held = { work, result: null };
    this.newest = [work.term, work.lease];
    if (!("model" in tensors) && !this.has(work.version)) {
      // The leader believes that we hold this version. We say which one we hold, and it sends the model.
      this.held = null;
      return this.askForWork();
    }
    this.begin(work, tensors);
  }

  private has(version: number): boolean {
    return this.holds[0] === this.term && this.holds[1] === version;
  }

  private begin(work: Plain, tensors: Tensors): void {
    this.timer(DEADLINE, work.deadline_s);
    this.holds = [work.term, work.version];
    const isTraining = work.kind === "train";
    const told = `version ${work.version}, ${work.batches.length} batch(es) of epoch ${work.epoch}`;
    this.become(isTraining ? "training" : "evaluating", told);
    const { lease, epoch, batches, rate, version } = work;
    if (isTraining) this.act({ action: "Train", lease, epoch, batches, rate, version, tensors });
    else this.act({ action: "Evaluate", lease, chunks: batches, size: work.examples, tensors });
  }

  private onRefused(refused: Plain): void {
    // The leader counts us as ready from here on, and speaks next, unless it believes that we have a lease that never
    // came.
    if (this.held && isOf(this.held, refused) && this.held.result) {
      this.held = null;
      this.become("waiting", `update rejected: ${refused.reason}`);
    }
    this.record("update.rejected", refused.reason);
    const [term, lease] = this.newest;
    const isNewer = refused.term > term || (refused.term === term && refused.holds > lease);
    if (refused.holds && refused.term === this.term && isNewer) this.askForWork();
  }

  // The trainer -------------------------------------------------------------------------------------------------

  private onResult(event: Extract<Event, { event: "Trained" | "EvaluationDone" }>): void {
    const held = this.held;
    if (!held || held.work.lease !== event.lease || (held.work.kind === "train") !== (event.event === "Trained")) return;
    this.cancel(DEADLINE);
    const problem = problemOf(event);
    if (problem !== null) return this.onDiverged(held, problem);
    this.failures = 0;
    const { term, version } = held.work;
    const common = { job: this.job, term, lease: event.lease, version, examples: event.examples };
    held.result = event.event === "Trained"
      ? { kind: "Update", body: { ...common, loss_sum: event.loss_sum, train_s: event.seconds }, tensors: event.tensors }
      : { kind: "Evaluated", body: { ...common, metrics: event.metrics }, tensors: {} };
    if (term < this.term) {
      // A newer leader lends its batches again.
      this.held = null;
      this.askForWork();
    } else if (this.deliver(held)) this.held = null;
  }

  /** Send a result; keep it while there is no session. True: it is out of hand. */
  private deliver(held: Held): boolean {
    const { work, result } = held;
    if (!this.isConnected || !result) {
      this.become("waiting", "the leader is not reachable; the update is kept");
      return false;
    }
    if (result.kind === "Update" && !work.credit) {
      this.become("waiting", "the update is ready; waiting for the leader to take it");
      const size_bytes = Object.values(result.tensors).reduce((sum, values) => sum + values.byteLength, 0);
      this.send("Offer", { job: this.job, term: work.term, lease: work.lease, size_bytes });
      return false;
    }
    this.become("waiting", SENT);
    this.send(result.kind, result.body, result.tensors);
    return true;
  }

  private onDiverged(held: Held, reason: string): void {
    this.held = null;
    this.record("training.diverged", reason);
    if (this.isConnected) {
      this.send("Failed", { job: this.job, term: held.work.term, lease: held.work.lease, reason, traceback: "", diverged: true });
    }
    this.askForWork();
  }

  private onTrainerFailed(lease: number, reason: string, traceback: string): void {
    this.isPrepared = false;
    this.holds = NOTHING_HELD;
    this.failures += 1;
    this.cancel(DEADLINE);
    this.record("trainer.failed", reason);
    const held = this.held;
    this.held = null;
    if (held && held.work.lease === lease && this.isConnected) this.failed(held.work.term, lease, reason, traceback);
    this.retry(reason);
  }

  private onPrepareFailed(reason: string, traceback: string): void {
    this.failures += 1;
    this.record("preparation.failed", reason);
    // No worker ever holds lease 0: the leader counts the failure and shows the reason.
    if (this.isConnected) this.failed(this.term, 0, reason, traceback);
    this.retry(reason);
  }

  private failed(term: number, lease: number, reason: string, traceback: string): void {
    const told = { reason: clip(reason), traceback: clip(traceback, TRACEBACK_MAX_CHARS) };
    this.send("Failed", { job: this.job, term, lease, ...told, diverged: false });
  }

  private retry(reason: string): void {
    const wait_s = RETRY_S[Math.min(this.failures - 1, RETRY_S.length - 1)];
    this.become("failing", reason);
    if (wait_s === 0) return this.act({ action: "Prepare" });
    this.retryWaits = true;
    this.timer(RETRY, wait_s);
  }

  // Sessions and time -------------------------------------------------------------------------------------------

  private onLeaderConnected(): void {
    this.isConnected = true;
    if (!this.retryWaits) return this.resume();
    // Most preparations fail for lack of a connection: there is one now.
    this.retryWaits = false;
    this.cancel(RETRY);
    this.act({ action: "Prepare" });
  }

  private resume(): void {
    if (!this.held) this.askForWork();
    else if (this.held.result && this.deliver(this.held)) this.held = null;
  }

  private askForWork(): void {
    if (!(this.isConnected && this.isPrepared) || this.held) return;
    this.become("ready", "waiting for a lease");
    this.send("Ready", { job: this.job, holds_term: this.holds[0], holds_version: this.holds[1] });
  }

  private onReassigned(term: number, leader: string): void {
    if (term < this.term) return;
    const isNewer = term > this.term;
    this.term = term;
    this.leader = leader;
    if (isNewer && this.held?.result) this.held = null;
    this.resume();
  }

  private onTimer(name: string): void {
    if (name === RETRY) {
      this.retryWaits = false;
      this.act({ action: "Prepare" });
    } else if (name === ASK) this.askForWork();
    else if (name === DEADLINE && this.held && !this.held.result) {
      const { lease, deadline_s } = this.held.work;
      this.act({ action: "Interrupt", lease, reason: `no result within the lease's ${tenths(deadline_s)} s` });
    }
  }

  // Actions -----------------------------------------------------------------------------------------------------

  private become(phase: string, reason: string): void {
    this.phase = phase;
    this.reason = reason;
  }

  private act(action: Action): void {
    this.actions.push(action);
  }

  private send(kind: string, body: Plain, tensors: Tensors = {}): void {
    this.act({ action: "Send", to: this.leader, kind, body, tensors });
  }

  private timer(name: string, after_s: number): void {
    this.act({ action: "SetTimer", name, after_s });
  }

  private cancel(name: string): void {
    this.act({ action: "CancelTimer", name });
  }

  private record(kind: string, reason: string): void {
    this.act({ action: "Record", kind, reason });
  }
}

function isOf(held: Held, message: Plain): boolean {
  return held.work.term === message.term && held.work.lease === message.lease;
}

/** Why a result is of no use to anyone; null: it is. */
function problemOf(event: Extract<Event, { event: "Trained" | "EvaluationDone" }>): string | null {
  if (event.event === "Trained") {
    return Number.isFinite(event.loss_sum) ? null : "training gave a loss that is not finite: try a lower learning rate";
  }
  for (const { name, kind, sums } of event.metrics) {
    const a = `${"aeiou".includes(name.slice(0, 1).toLowerCase()) ? "an" : "a"} ${name}`;
    if (!sums.every(Number.isFinite)) return `evaluation gave ${a} that is not finite: try a lower learning rate`;
    if (["f1", "confusion", "histogram"].includes(kind) && Math.min(...sums) < 0) return `evaluation gave ${a} with a count below 0`;
    if (kind === "mean" && sums[1] < 0) return `evaluation gave ${a} with a weight below 0`;
    if (name === "accuracy" && (kind === "mean" || kind === "ratio") && !(0 <= sums[0] && sums[0] <= sums[1])) {
      return `evaluation gave an accuracy of ${sums[0]} right of ${sums[1]}`;
    }
  }
  return null;
}

/** Shortens free text so that it fits a message, as Python counts characters. */
export function clip(text: string, limit = REASON_MAX_CHARS): string {
  // eslint-disable-next-line no-control-regex
  const chars = Array.from(text.replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, " ").replace(/[\ud800-\udfff]/gu, "?"));
  return chars.length <= limit ? chars.join("") : chars.slice(0, limit - 1).join("") + "…";
}

/** With one digit, a tie to the even one, as Python writes it. Of binary fractions only odd quarters are ties. */
function tenths(value: number): string {
  const low = Math.floor(value * 10);
  return (value * 4) % 2 === 1 ? ((low + (low % 2)) / 10).toFixed(1) : value.toFixed(1);
}
