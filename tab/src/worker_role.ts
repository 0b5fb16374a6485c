// The worker of one job in a tab: decides as `roles/worker/worker.py` does, for a plan that a tab may work for: whole updates to one
// leader, no codec. Events in, actions out; no clock, no socket, no chance. Recorded traces of the Python
// role hold the two together (`tab/test/traces.mjs`).

import type { Tensors } from "./frames.ts";
import { type OwnAction, OwnPart } from "./own_part.ts";
import { Participation } from "./participation.ts";
import { clipped, privacyOf } from "./privacy.ts";
import type { Plain } from "./protobuf.ts";

export interface MetricSum { name: string; kind: string; sums: number[]; lower: boolean }

export type Event =
  | { event: "Started" }
  /** `state`: of the device, for a job that trains on its own rows. `has_own`: a part of the model is the device's own. */
  | { event: "Prepared"; state?: Plain; participations?: [number, number][]; has_own?: boolean }
  /** Its own rows were counted again. */
  | { event: "ExamplesCounted"; state: Plain }
  | { event: "PrepareFailed"; reason: string; traceback: string }
  | { event: "Connected"; node: string }
  | { event: "Disconnected"; node: string }
  | { event: "Reassigned"; term: number; leader: string }
  | { event: "Received"; kind: string; body: Plain; tensors: Tensors }
  | { event: "Trained"; lease: number; examples: number; loss_sum: number; seconds: number; tensors: Tensors; fresh?: number; fresh_metrics?: MetricSum[]; labels?: number[]; state?: Plain }
  | { event: "EvaluationDone"; lease: number; examples: number; metrics: MetricSum[] }
  | { event: "Participated"; term: number; version: number; lease: number }
  | { event: "NotParticipated"; term: number; lease: number; reason: string }
  | { event: "TrainerFailed"; lease: number; reason: string; traceback: string }
  | { event: "TimerFired"; name: string }
  | { event: "StopRequested"; reason: string };

export type Action =
  | { action: "Send"; to: string; kind: string; body: Plain; tensors: Tensors }
  | { action: "SetTimer"; name: string; after_s: number }
  | { action: "CancelTimer"; name: string }
  | { action: "Record"; kind: string; reason: string }
  | { action: "Prepare" }
  | { action: "Train"; lease: number; epoch: number; batches: number[]; rate: number; version: number; examples: number; tensors: Tensors }
  | { action: "Evaluate"; lease: number; chunks: number[]; size: number; tensors: Tensors }
  /** Make a participation in a private job durable; answered by (Not)Participated. */
  | { action: "Participate"; term: number; version: number; lease: number }
  | OwnAction
  /** Count the device's own rows again; answered by ExamplesCounted, or by TrainerFailed of lease 0. */
  | { action: "CountExamples" }
  | { action: "Interrupt"; lease: number; reason: string }
  | { action: "End"; reason: string };

/** Waits between attempts to start a broken trainer again. */
const RETRY_S = [0, 1, 2, 5, 10, 30];
const REASON_MAX_CHARS = 4096;
const TRACEBACK_MAX_CHARS = 8192;
export const ASK = "ask-again";
const DEADLINE = "lease-deadline", RETRY = "retry";
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
  /** Of the device when it last trained or counted its rows; null: the job does not train on them. */
  private state: Plain | null = null;
  private actions: Action[] = [];
  private readonly isLocal: boolean;
  private readonly participation: Participation | null;
  private readonly own: OwnPart;
  /** Leases in a row that the device declined because of its privacy account. */
  private declined = 0;

  constructor(private readonly job: string, private leader: string, private term: number, plan: Plain) {
    const privacy = privacyOf(plan);
    this.isLocal = plan.data === "local";
    this.participation = privacy && new Participation(privacy);
    this.own = new OwnPart(isInStep(plan), (action) => this.act(action), (kind, reason) => this.record(kind, reason));
  }

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
        this.own.isThere = event.has_own ?? false;
        this.state = event.state ?? null;
        this.participation?.restore(event.participations ?? []);
        return this.askForWork();
      case "ExamplesCounted":
        this.state = event.state;
        return this.askForWork();
      case "PrepareFailed": return this.onPrepareFailed(event.reason, event.traceback);
      case "Connected":
        if (event.node === this.leader) this.onLeaderConnected();
        return;
      case "Disconnected":
        if (event.node !== this.leader) return;
        this.isConnected = false;
        if (!this.held) this.own.inDoubt();
        // A model may have been on its way.
        this.holds = NOTHING_HELD;
        return;
      case "Reassigned": return this.onReassigned(event.term, event.leader);
      case "Received": return this.onMessage(event.kind, event.body, event.tensors);
      case "Trained":
      case "EvaluationDone": return this.onResult(event);
      case "Participated": return this.onCounted(event);
      case "NotParticipated": return this.onNotCounted(event);
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
        if (this.held && isOf(this.held, body) && this.held.result?.kind === "Update" && this.isCounted(this.held)) {
          this.become("waiting", SENT);
          this.send(this.held.result.kind, this.held.result.body, this.held.result.tensors);
          this.held = null;
        }
        return;
      case "Wait":
        this.become("waiting", body.reason);
        this.settleOwn();
        if (body.retry_after_s) this.timer(ASK, body.retry_after_s);
        return;
      case "UpdateRefused": return this.onRefused(body);
      case "Finished":
        this.settleOwn();
        this.cancel(DEADLINE);
        return this.act({ action: "End", reason: body.reason });
    }
  }

  /** Note on a leader's message that it took the earlier update, which it did not refuse. */
  private settleOwn(): void {
    if (!this.held) this.own.taken(this.term);
  }

  private onWork(work: Plain, tensors: Tensors): void {
    if (work.term < this.term || !this.isPrepared) return;
    this.term = work.term;
    this.settleOwn();
    this.own.onWork(work);
    const why = this.participation?.refusal(work) ?? null;
    if (why !== null) return this.decline(work, why);
    this.declined = 0;
    this.unsend();
    this.held = { work, result: null };
    this.newest = [work.term, work.lease];
    if (!("model" in tensors) && !this.has(work.version)) {
      // The leader believes that we hold this version. We say which one we hold, and it sends the model.
      this.held = null;
      return this.askForWork();
    }
    this.begin(work, tensors);
  }

  /** Decline a lease that the device's account forbids: report the account, and ask for other work ever less often. */
  private decline(work: Plain, why: string): void {
    this.unsend();
    this.held = null;
    this.newest = [work.term, work.lease];
    this.record("lease.declined", `lease ${work.lease} of version ${work.version}: ${why}`);
    this.become("waiting", why);
    const wait_s = RETRY_S[Math.min(this.declined, RETRY_S.length - 1)];
    this.declined += 1;
    if (wait_s) this.timer(ASK, wait_s);
    else this.askForWork();
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
    const { lease, epoch, batches, rate, version, examples } = work;
    if (isTraining) this.act({ action: "Train", lease, epoch, batches, rate, version, examples, tensors });
    else this.act({ action: "Evaluate", lease, chunks: batches, size: work.examples, tensors });
  }

  private onRefused(refused: Plain): void {
    // The leader counts us as ready from here on, and speaks next, unless it believes that we have a lease that never
    // came.
    if (this.held && isOf(this.held, refused) && this.held.result) {
      this.held = null;
      this.become("waiting", `update rejected: ${refused.reason}`);
    }
    // The update that this one is a copy of counts, so its own part stays too.
    if (refused.is_copy) this.own.merged(refused);
    else this.own.refused(refused);
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
      ? this.update(held.work, common, event)
      : { kind: "Evaluated", body: { ...common, metrics: event.metrics }, tensors: {} };
    if (term < this.term) {
      // A newer leader lends its batches again.
      this.unsend();
      this.held = null;
      this.askForWork();
    } else if (this.deliver(held)) this.held = null;
  }

  private update(work: Plain, common: Plain, event: Extract<Event, { event: "Trained" }>): Held["result"] {
    const { loss_sum, seconds: train_s, fresh, fresh_metrics, labels, state, tensors } = event;
    this.state = state ?? null;
    this.own.trained(work);
    if (this.participation) {
      // No figure about the device's rows leaves: no noise protects those.
      const delta = clipped(tensors.delta, this.participation.privacy.clip);
      return { kind: "Update", body: { ...common, examples: Math.max(1, work.examples), loss_sum: 0, train_s, state }, tensors: { delta } };
    }
    return { kind: "Update", body: { ...common, loss_sum, train_s, fresh, fresh_metrics, labels, state }, tensors };
  }

  private isCounted(held: Held): boolean {
    return !this.participation || this.participation.isCounted(held.work);
  }

  private onCounted(event: Extract<Event, { event: "Participated" }>): void {
    const { held, participation } = this;
    participation?.onCounted(event);
    if (!participation || !held || !isOf(held, event) || held.result?.kind !== "Update") return;
    const { body } = held.result;
    held.result.body = { ...body, state: participation.told(body.state ?? null, this.term) };
    if (this.deliver(held)) this.held = null;
  }

  /** Drop an update that cannot be counted. */
  private onNotCounted({ term, lease, reason }: Extract<Event, { event: "NotParticipated" }>): void {
    this.participation?.onNotCounted();
    this.record("update.withheld", `lease ${lease}: ${reason}`);
    if (!this.held || !isOf(this.held, { term, lease })) return;
    this.unsend();
    this.held = null;
    this.become("failing", reason);
    if (this.isConnected) this.failed(term, lease, reason, "");
    this.timer(ASK, RETRY_S.at(-1)!);
  }

  /** Send a result; keep it while there is no session. True: it is out of hand. */
  private deliver(held: Held): boolean {
    const { work, result } = held;
    if (result?.kind === "Update" && this.isConnected && !this.isCounted(held)) {
      const { term, version, lease } = work;
      if (this.participation!.asks(work)) this.act({ action: "Participate", term, version, lease });
      return false;
    }
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

  /** Note that an update that was made will not be sent, if one is held. */
  private unsend(): void {
    if (this.held) this.own.lost();
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
    // Counting failed. What came meanwhile meets the same trainer, and reports for itself.
    if (!lease && (this.held || !this.isPrepared)) return;
    this.isPrepared = false;
    this.holds = NOTHING_HELD;
    this.failures += 1;
    this.cancel(DEADLINE);
    this.unsend();
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
    this.send("Ready", { job: this.job, holds_term: this.holds[0], holds_version: this.holds[1], state: this.participation?.told(this.state, this.term) ?? this.state });
  }

  /** Ask for work after a wait. The device may have other rows of its own by now, and the leader goes by their number. */
  private askAgain(): void {
    if (this.isLocal && this.isPrepared && !this.held) this.act({ action: "CountExamples" });
    else this.askForWork();
  }

  private onReassigned(term: number, leader: string): void {
    if (term < this.term) return;
    const isNewer = term > this.term;
    this.term = term;
    this.leader = leader;
    if (isNewer && this.held?.result) {
      this.unsend();
      this.held = null;
    }
    this.resume();
  }

  private onTimer(name: string): void {
    if (name === RETRY) {
      this.retryWaits = false;
      this.act({ action: "Prepare" });
    } else if (name === ASK) this.askAgain();
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

/** Whether all versions of a plan are made in step, as `Plan.paces` has it. Of the plans that come here, `auto` leaves that only
 * for those without a promise. */
function isInStep({ pace, trust }: Plain): boolean {
  return pace === "sync" || (pace === "auto" && /\bprivate\b/.test(trust));
}

function isOf(held: Held, message: Plain): boolean {
  return held.work.term === message.term && held.work.lease === message.lease;
}

/** Why a result is of no use to anyone; null: it is. */
function problemOf(event: Extract<Event, { event: "Trained" | "EvaluationDone" }>): string | null {
  if (event.event === "Trained" && !Number.isFinite(event.loss_sum)) return "training gave a loss that is not finite: try a lower learning rate";
  for (const { name, kind, sums } of (event.event === "Trained" ? event.fresh_metrics : event.metrics) ?? []) {
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
