// A device of a cluster: holds two lanes to the manager's door, sends heartbeats, and carries out what its worker decides.
// Where it runs is a matter of its parts: in a browser's tab, in a page or an app of others, in Node.

import { about, type About, type Identity, join, type Offer, RefusedHere } from "./identity.ts";
import type { Message } from "./frames.ts";
import { OwnValues } from "./own_values.ts";
import type { Parts } from "./parts.ts";
import { privacyOf } from "./privacy.ts";
import { PrivacyLedger } from "./privacy_ledger.ts";
import type { Plain } from "./protobuf.ts";
import { columnsFromPlain } from "./raw_columns.ts";
import { Blobs, Lane } from "./session.ts";
import { Trainer } from "./trainer.ts";
import { inWords, refusal, say } from "./words.ts";
import { ASK, type Action, clip, type Event, type MetricSum, Worker } from "./worker_role.ts";

/** How a device is, for a person. */
export interface Shown {
  state: "new" | "joining" | "connecting" | "waiting" | "asking" | "working" | "paused" | "stopped" | "refused";
  reason: string;
  /** Who asks and what for; null: not known yet, or nobody told. */
  about: About | null;
  /** The job that waits for its user's answer. */
  offer: Offer | null;
  node: string;
  cluster: string;
  job: string;
  threads: number;
  /** What computes the job. */
  engine: string;
  epoch: number;
  version: number;
  leases: number;
  examples: number;
  loss: number | null;
  /** Of the lease under way. */
  done: number;
  of: number;
  down_bytes: number;
  up_bytes: number;
  /** Of what came down: files of jobs, which this device keeps. */
  files_bytes: number;
  /** Job -> the rows that this device has for it, of the jobs that learn from devices' own. */
  rows: Record<string, number>;
  /** Of the last lease on own rows: how many were new, and how good the model was on them before it learned from them. */
  fresh: number;
  fresh_metrics: MetricSum[];
}

/** Of the lease under way. */
export type Progress = Pick<Shown, "job" | "epoch" | "version" | "done" | "of" | "leases" | "examples" | "loss" | "fresh" | "fresh_metrics">;

/** What a device tells those who listen. */
export interface Events {
  /** Anything changed. */
  state: Shown;
  /** A batch was trained, a lease began or an update was sent. */
  progress: Progress;
  /** A job waits for an answer: `take()` downloads it and trains. */
  offer: Offer;
  /** What its worker decided, and why: for a log. */
  record: { kind: string; reason: string };
}

const BACKOFF_S = [0.1, 0.5, 1, 2, 5, 10];
/** A door that refused us does so again: ask seldom. */
const REFUSED_S = 30;
const PROTOCOL = 2;
/** What a device is, as a leader shows it. */
const KIND_MAX_CHARS = 128;

interface Employed {
  assign: Plain;
  worker: Worker;
  timers: Map<string, ReturnType<typeof setTimeout>>;
  trainer: Trainer | null;
  /** Of a private job: what left this device. */
  ledger: PrivacyLedger | null;
  /** This device's own part of the model, if the model has one. */
  own: OwnValues | null;
  busy: Promise<void>;
  isOver: boolean;
}

export class Device {
  private readonly shown: Shown;
  private readonly listeners: { [Name in keyof Events]: Set<(news: Events[Name]) => void> } =
    { state: new Set(), progress: new Set(), offer: new Set(), record: new Set() };
  private identity: Identity | null = null;
  private about = "";
  /** Why it does not train although it was told to; empty: it may. */
  private why = "";
  private isStarted = false;
  /** Its user wants the graphics processor to compute even where that is slower. */
  private isGraphicsWanted = false;
  private isDialling = false;
  private attempts = 0;
  private redial: ReturnType<typeof setTimeout> | undefined;
  private incarnation = fresh();
  private control: Lane | null = null;
  private work: Lane | null = null;
  private blobs: Blobs | null = null;
  /** Jobs whose download its user agreed to, and how large a later one may be without being asked. */
  private readonly agreed = new Set<string>();
  private later_bytes = 0;
  /** No job that downloads more is agreed to by `start`. */
  private most_bytes = Infinity;
  /** Nobody is there to be asked: what was said once holds for jobs that learn from its rows too. */
  private isUnattended = false;
  /** The assignment that waits for its user's answer. */
  private offered: Plain | null = null;
  private isWelcome = false;
  private beat: ReturnType<typeof setTimeout> | undefined;
  private seq = 0;
  private heard_s = 0;
  private heartbeat_s = 1;
  private welcome: Plain = {};
  private readonly jobs = new Map<string, Employed>();
  /** What is being written down of own parts of models, one after the other. A job that is over here may still write. */
  private writing: Promise<void> = Promise.resolve();

  constructor(private readonly parts: Parts) {
    this.shown = {
      state: "new", reason: "", about: null, offer: null, node: "", cluster: "", job: "", threads: parts.engine.threads, engine: "", epoch: 0,
      version: 0, leases: 0, examples: 0, loss: null, done: 0, of: 0, down_bytes: 0, up_bytes: 0, files_bytes: 0, rows: {}, fresh: 0, fresh_metrics: [],
    };
  }

  /** Listen; what is returned ends that. */
  on<Name extends keyof Events>(name: Name, hear: (news: Events[Name]) => void): () => void {
    this.listeners[name].add(hear);
    return () => void this.listeners[name].delete(hear);
  }

  get now(): Shown {
    return { ...this.shown };
  }

  /** Who asks and what for, by a link's token or by the certificate of this device: before anything is downloaded. */
  async look(secret = ""): Promise<Shown> {
    this.identity = await this.parts.keys.load();
    await this.lookAbout(secret);
    return this.now;
  }

  /** Spend a token, and take part in the jobs that `look` named. `wanted`: a name to be known by. `about`: what this device
   * is, such as "Chromium 150 on Linux". */
  async join(secret: string, wanted: string, about: string): Promise<void> {
    this.tell({ state: "joining", reason: say("why.joining") });
    try {
      this.identity = await join(this.parts.door, this.parts.keys, secret, wanted);
    } catch (error) {
      return this.tell({ state: "refused", reason: inTheirWords(error) });
    }
    this.start(about);
  }

  /** Agree to later jobs that download no more than this each. Jobs that learn from this device's own rows are asked about all the same. */
  later(megabytes: number): void {
    this.later_bytes = megabytes * 1e6;
  }

  /** Agree to jobs that download no more than this each, whether `look` named them or they come later, and to no others. For a
   * program without a person: also to those that learn from its rows. */
  limit(megabytes: number): void {
    this.later_bytes = this.most_bytes = megabytes * 1e6;
    this.isUnattended = true;
  }

  /** This device has other rows now: count them, and ask for work with their number. */
  async recount(): Promise<void> {
    const { about, offer } = this.shown;
    this.tell({ rows: { ...this.shown.rows, ...(await this.counted([...(about?.jobs ?? []), ...(offer ? [offer] : [])])) } });
    for (const job of this.jobs.values()) if (isLocal(job.assign)) this.post(job, { event: "TimerFired", name: ASK });
  }

  /** Delete this device's rows. Nothing that is not sent by now is sent any more, and no job has them. */
  async forgetRows(): Promise<void> {
    const { rows } = this.parts;
    if (!rows?.forget) throw new Error("the rows of this device are not this program's to delete");
    const isAtWork = this.jobs.size > 0;
    if (isAtWork) this.part(say("why.rows-gone"));
    await this.afterWriting(() => rows.forget!());
    for (const { job, own } of this.shown.about?.jobs ?? []) if (own) this.agreed.delete(job);
    for (const job of Object.keys(this.shown.rows)) this.agreed.delete(job);
    await this.recount();
    if (isAtWork) this.follow();
  }

  /** Delete once everything is written. A job that begins meanwhile reads its own part after that, and finds none. */
  private async afterWriting(act: () => Promise<unknown>): Promise<void> {
    const done = this.writing.then(act);
    this.writing = done.then(() => undefined, () => undefined);
    await done;
  }

  /** How many rows of its own this device has for each of these jobs. */
  private async counted(offers: Offer[]): Promise<Record<string, number>> {
    const { rows } = this.parts, found: Record<string, number> = {};
    if (!rows) return found;
    for (const { job, own } of offers) {
      if (!own) continue;
      try {
        found[job] = await (await rows.open(columnsFromPlain(own.columns))).look();
      } catch (error) {
        // A folder with rows of another form, say: who asks for the job is told.
        this.emit("record", { kind: "rows.unknown", reason: told(error) });
        found[job] = 0;
      }
    }
    return found;
  }

  /** Rest for this reason, or go on if it is empty. */
  pause(why: string): void {
    this.why = why;
    this.follow();
  }

  /** Compute by the graphics processor, from the next job on, even if that is slower. */
  graphics(isWanted: boolean): void {
    this.isGraphicsWanted = isWanted;
  }

  /** Say goodbye. `start` goes on. */
  stop(): void {
    this.isStarted = false;
    this.part(say("why.left"));
    this.tell({ state: "stopped", reason: say("why.stopped") });
  }

  /** Leave the cluster: the key goes, the files of its jobs, and the rows that this program keeps. */
  async forget(): Promise<void> {
    this.isStarted = false;
    this.part(say("why.gone"));
    await this.afterWriting(() => Promise.all([this.parts.keys.forget(), this.parts.blobs.forget(), this.parts.rows?.forget?.()]));
    this.identity = null;
    this.agreed.clear();
    this.tell({ state: "new", reason: "", node: "", cluster: "", about: null, rows: {} });
  }

  private async lookAbout(secret: string): Promise<void> {
    const { identity } = this;
    const news: Partial<Shown> = { reason: "", node: identity?.node ?? "", cluster: identity?.cluster ?? "" };
    if (identity || secret) {
      try {
        news.about = await about(this.parts.door, secret, identity);
      } catch (error) {
        if (!(error instanceof RefusedHere)) news.reason = say("why.unreachable");
        // A browser that was shut out, or came back too late, may join again by a new link.
        else if (!identity || !secret) [news.state, news.reason] = ["refused", refusal(error.message)];
        else news.about = await about(this.parts.door, secret, null).catch(() => null);
      }
    }
    news.rows = await this.counted(news.about?.jobs ?? []);
    this.tell(news);
  }

  /** Its user agreed to the jobs that `look` named. */
  private agree(): void {
    for (const { job, once_bytes, own } of this.shown.about?.jobs ?? []) {
      const isSmall = this.most_bytes === Infinity || once_bytes <= this.most_bytes;
      if (isSmall && (!own || this.hasRows(job))) this.agreed.add(job);
    }
  }

  /** Whether this device can learn from its own rows for a job. One that nobody attends waits for them. */
  private hasRows(job: string): boolean {
    return this.isUnattended || (this.shown.rows[job] ?? 0) > 0;
  }

  /** Its user agreed to the job that was assigned meanwhile. */
  take(): void {
    const assign = this.offered;
    if (!assign || (this.shown.offer?.own && !this.hasRows(assign.job))) return;
    this.offered = null;
    this.agreed.add(assign.job);
    this.tell({ offer: null });
    this.employ(assign);
  }

  /** Take part again as who it is, in the jobs that `look` named. */
  start(about: string): void {
    if (!this.identity) throw new Error("this device has not joined: call look() or join() first");
    this.about = about;
    this.agree();
    this.isStarted = true;
    this.attempts = 0;
    this.tell({ node: this.identity.node, cluster: this.identity.cluster });
    this.follow();
  }

  /** Be connected if it may train, and gone if it may not: a device that rests says so, and holds no lease. */
  private follow(): void {
    if (!this.isStarted) return;
    if (this.why) {
      this.part(this.why);
      this.tell({ state: "paused", reason: this.why });
    } else if (!this.control && !this.isDialling) void this.dial();
  }

  // Sessions ----------------------------------------------------------------------------------------------------

  private async dial(): Promise<void> {
    if (!this.identity || this.isDialling) return;
    clearTimeout(this.redial);
    this.isDialling = true;
    this.tell({ state: "connecting", reason: say("why.calling") });
    const { identity, incarnation } = this;
    const lost = (_: number, reason: string) => this.lost(reason || say("why.closed"));
    let work: Lane | null = null, control: Lane | null = null;
    try {
      work = await Lane.open(this.parts.door, identity, "Work", incarnation, { message: (message) => this.received(message), closed: lost });
      control = await Lane.open(this.parts.door, identity, "Control", incarnation, { message: (message) => this.received(message), closed: lost });
    } catch (error) {
      work?.close();
      this.isDialling = false;
      const isRefused = error instanceof RefusedHere;
      this.tell({ state: isRefused ? "refused" : "connecting", reason: inTheirWords(error) });
      return this.dialLater(isRefused ? REFUSED_S : undefined);
    }
    this.isDialling = false;
    [this.work, this.control] = [work, control];
    if (!this.isStarted || this.why) return this.part(this.why || say("why.left"));
    this.blobs ??= new Blobs(this.parts.door, identity, incarnation, this.parts.blobs, (bytes) =>
      this.tell({ down_bytes: this.shown.down_bytes + bytes, files_bytes: this.shown.files_bytes + bytes }));
    this.heard_s = now_s();
    const { engine } = this.parts;
    const facts = { host: this.about, arch: engine.arch, cpus: engine.threads, onnx: engine.version, browser: this.about };
    control.send("Hello", { node: identity.node, incarnation, protocol: PROTOCOL, facts });
  }

  private dialLater(after_s?: number): void {
    const wait_s = after_s ?? BACKOFF_S[Math.min(this.attempts++, BACKOFF_S.length - 1)] * (0.75 + Math.random() / 2);
    clearTimeout(this.redial);
    this.redial = setTimeout(() => this.follow(), wait_s * 1000);
  }

  /** The connection is over: workers keep what they have, and it is dialled again. */
  private lost(reason: string, after_s?: number): void {
    if (!this.control && !this.work) return;
    this.hangUp();
    for (const job of this.jobs.values()) this.post(job, { event: "Disconnected", node: job.assign.leader });
    this.tell({ state: "connecting", reason });
    this.dialLater(after_s);
  }

  private hangUp(): void {
    clearTimeout(this.beat);
    this.control?.close();
    this.work?.close();
    this.blobs?.close();
    this.control = this.work = null;
    this.isWelcome = false;
  }

  /** Say goodbye: leases return at once. Everything of a job is let go. */
  private part(reason: string): void {
    clearTimeout(this.redial);
    this.control?.send("Leave", { reason });
    for (const job of [...this.jobs.keys()]) this.end(job);
    this.offered = null;
    this.tell({ offer: null });
    this.hangUp();
    // Who comes back is another process: it holds no old lease.
    this.incarnation = fresh();
    this.blobs = null;
  }

  private sendBeat(): void {
    clearTimeout(this.beat);
    if (now_s() - this.heard_s > this.welcome.lost_after_s + 2 * this.heartbeat_s) return this.lost(say("why.silent"));
    this.seq += 1;
    this.control?.send("Heartbeat", { seq: this.seq, is_idle: !this.jobs.size });
    this.beat = setTimeout(() => this.sendBeat(), this.heartbeat_s * 1000);
  }

  // Messages ----------------------------------------------------------------------------------------------------

  private received({ kind, body, tensors }: Message): void {
    this.heard_s = now_s();
    switch (kind) {
      case "Welcome": return this.onWelcome(body);
      case "HeartbeatSeen": {
        const before_s = this.heartbeat_s;
        this.heartbeat_s = body.next_s || this.welcome.heartbeat_s;
        if (this.heartbeat_s < before_s) this.sendBeat();
        return;
      }
      case "Assign": return this.onAssign(body);
      case "Dismiss":
        if (!body.job) return this.lost(`dismissed: ${body.reason}`, REFUSED_S);
        if (this.offered?.job === body.job) this.refuse(say("why.no-job"));
        if (this.jobs.has(body.job)) this.post(this.jobs.get(body.job)!, { event: "StopRequested", reason: body.reason });
        return;
      default: {
        const job = this.jobs.get(body.job);
        if (!job || (body.term ?? 0) > job.assign.term) return;
        const bytes = Object.values(tensors).reduce((sum, values) => sum + values.byteLength, 0);
        if (bytes) this.tell({ down_bytes: this.shown.down_bytes + bytes });
        this.post(job, { event: "Received", kind, body, tensors });
      }
    }
  }

  private onWelcome(welcome: Plain): void {
    this.welcome = welcome;
    this.heartbeat_s = welcome.heartbeat_s;
    this.attempts = 0;
    this.isWelcome = true;
    if (welcome.come_s && !this.jobs.size) {
      this.control?.send("Leave", { reason: "there is no work", come_s: welcome.come_s });
      this.lost(say("why.no-work"), welcome.come_s);
      return;
    }
    this.sendBeat();
    // An assignment may have come before it, on the other lane, and wait for an answer.
    if (this.shown.offer) this.tell({ state: "asking", reason: say("why.asking", this.shown.offer.name) });
    else if (!this.jobs.size) this.tell({ state: "waiting", reason: say("why.no-job") });
    for (const job of this.jobs.values()) this.post(job, { event: "Connected", node: job.assign.leader });
  }

  private onAssign(assign: Plain): void {
    const before = this.jobs.get(assign.job);
    if (assign.role !== "worker" || (before && before.assign.term > assign.term)) return;
    if (assign.leader_endpoint) {
      // Devices dial a leader elsewhere; this one reaches its own door only.
      if (before) this.end(assign.job);
      return this.tell({ state: "waiting", reason: say("why.led-elsewhere", assign.leader) });
    }
    if (before) {
      before.assign = assign;
      return this.post(before, { event: "Reassigned", term: assign.term, leader: assign.leader });
    }
    // Nothing is downloaded for a job that this device cannot do.
    if (isSealed(assign)) return this.tell({ state: "waiting", reason: say("why.sealed", assign.spec.name || assign.job) });
    if (isLocal(assign) && !this.parts.rows) return this.tell({ state: "waiting", reason: say("why.no-rows", assign.spec.name || assign.job) });
    if (this.agreed.has(assign.job)) return this.employ(assign);
    this.offered = assign;
    void this.offer(assign);
  }

  /** Ask its user before anything of a job is downloaded. */
  private async offer(assign: Plain): Promise<void> {
    let known: About | null = null;
    try {
      known = await about(this.parts.door, "", this.identity);
    } catch (error) {
      this.emit("record", { kind: "offer.unknown", reason: told(error) });
    }
    // Another assignment, or its end, may have come meanwhile.
    if (this.offered !== assign) return;
    const nothing = { job: assign.job, name: assign.spec.name || assign.job, operator: "", once_bytes: NaN, update_bytes: NaN, minute_bytes: 0 };
    const offer = known?.jobs.find(({ job }) => job === assign.job) ?? nothing;
    const rows = { ...this.shown.rows, ...(await this.counted([offer])) };
    if (this.offered !== assign) return;
    this.tell({ about: known ?? this.shown.about, offer, rows });
    if (offer.once_bytes <= this.later_bytes && (this.isUnattended || !isLocal(assign))) return this.take();
    this.tell({ state: "asking", reason: say("why.asking", offer.name) });
  }

  private refuse(reason: string): void {
    this.offered = null;
    this.tell({ state: "waiting", reason, offer: null });
  }

  private employ(assign: Plain): void {
    const worker = new Worker(assign.job, assign.leader, assign.term, assign.spec.plan);
    this.parts.blobs.begin(assign.job);
    const job: Employed = { assign, worker, timers: new Map(), trainer: null, ledger: null, own: null, busy: Promise.resolve(), isOver: false };
    this.jobs.set(assign.job, job);
    this.tell({ job: assign.spec.name || assign.job, leases: 0, examples: 0, loss: null });
    this.post(job, { event: "Started" });
    if (this.isWelcome) this.post(job, { event: "Connected", node: assign.leader });
  }

  // The worker --------------------------------------------------------------------------------------------------

  private post(job: Employed, event: Event): void {
    if (job.isOver) return;
    for (const action of job.worker.handle(event)) this.carryOut(job, action);
    if (!job.isOver) this.tell({ state: "working", reason: inWords(job.worker.phase, job.worker.reason, job.worker.work) });
  }

  private carryOut(job: Employed, action: Action): void {
    switch (action.action) {
      case "Send": {
        const sent = this.work?.send(action.kind, action.body, action.tensors) ?? 0;
        const isUpdate = action.kind === "Update";
        return this.tell({ up_bytes: this.shown.up_bytes + sent, leases: this.shown.leases + (isUpdate ? 1 : 0) });
      }
      case "SetTimer":
        clearTimeout(job.timers.get(action.name));
        job.timers.set(action.name, setTimeout(() => this.post(job, { event: "TimerFired", name: action.name }), action.after_s * 1000));
        return;
      case "CancelTimer":
        clearTimeout(job.timers.get(action.name));
        return;
      case "Record": return this.emit("record", { kind: action.kind, reason: action.reason });
      case "Prepare": return this.busy(job, () => this.prepare(job));
      case "SettleOwn": return this.write(job, (own) => own.settle(action.lease, action.taken, action.undoable));
      case "UndoOwn": return this.write(job, (own) => own.undo(action.leases));
      case "Participate": return void this.participate(job, action);
      case "CountExamples": return void this.count(job);
      case "Train": return this.busy(job, () => this.train(job, action));
      case "Evaluate": return this.busy(job, () => this.evaluate(job, action));
      case "Interrupt":
        if (job.trainer) job.trainer.interrupted = action.reason;
        return;
      case "End":
        this.end(job.assign.job);
        return this.tell({ state: "waiting", reason: say("why.no-other-job", action.reason) });
    }
  }

  /** Count the device's rows again. */
  private async count(job: Employed): Promise<void> {
    try {
      if (!job.trainer) throw new Error("no trainer is loaded");
      await job.trainer.recount();
      this.post(job, { event: "ExamplesCounted", state: this.stateOf(job.trainer) });
    } catch (error) {
      this.post(job, { event: "TrainerFailed", lease: 0, reason: told(error), traceback: "" });
    }
  }

  /** What a leader is told of this device in a job that trains on its rows. */
  private stateOf({ held }: Trainer): Plain {
    return { kind: clip(this.about, KIND_MAX_CHARS), examples: held };
  }

  /** One thing at a time: what comes meanwhile waits. */
  private busy(job: Employed, act: () => Promise<void>): void {
    job.busy = job.busy.then(async () => {
      if (!job.isOver) await act();
    });
  }

  /** Write down what becomes of the own part of a job's model. The next lease begins from there, so it waits for that. */
  private write(job: Employed, act: (own: OwnValues) => Promise<void>): void {
    const { own } = job;
    if (!own) return;
    const written = this.writing.then(() => act(own));
    this.writing = written;
    this.busy(job, () => written);
  }

  private async prepare(job: Employed): Promise<void> {
    try {
      await job.trainer?.release();
      job.trainer = null;
      if (!this.blobs) throw new Error("there is no connection to the manager");
      const trainer = await Trainer.prepare(job.assign.spec, this.blobs, this.parts.engine, this.parts.rows, this.isGraphicsWanted, (reason) => this.tell({ reason }));
      if (job.isOver) return void (await trainer.release());
      job.trainer = trainer;
      const privacy = privacyOf(job.assign.spec.plan);
      if (privacy && !this.parts.rows) throw new Error("this device keeps no account of what leaves it");
      if (privacy) job.ledger ??= await PrivacyLedger.read(this.parts.rows!, job.assign.job, privacy);
      if (trainer.ownLayout) job.own ??= await this.ownValues(job.assign.job, trainer.ownLayout.text, trainer.firstOwn);
      this.tell({ engine: trainer.engine });
    } catch (error) {
      return this.post(job, { event: "PrepareFailed", reason: told(error), traceback: "" });
    }
    this.post(job, { event: "Prepared", state: isLocal(job.assign) ? this.stateOf(job.trainer) : undefined, participations: job.ledger?.taken, has_own: job.own !== null });
  }

  private async ownValues(job: string, layout: string, first: Float32Array): Promise<OwnValues> {
    if (!this.parts.rows) throw new Error("a part of this model is each device's own, and this device keeps none");
    await this.writing;
    return OwnValues.read(this.parts.rows, job, layout, first);
  }

  private async train(job: Employed, action: Extract<Action, { action: "Train" }>): Promise<void> {
    const { lease, epoch, version, batches, rate } = action;
    const begin = (of: number) => this.tell({ epoch, version, done: 0, of });
    const onBatch = (done: number) => this.tell({ done });
    begin(batches.length);
    try {
      const trainer = loaded(job, action.tensors.model);
      if (job.own) trainer.ownPart = job.own.values;
      const isOwn = isLocal(job.assign);
      const lesson = isOwn ? await trainer.learn(epoch, batches[0], action.examples, rate, begin, onBatch) : await trainer.train(epoch, batches, rate, onBatch);
      const { delta, own, examples, loss_sum, ...rest } = lesson;
      job.own?.made(lease, own);
      const { fresh = 0, fresh_metrics = [] } = lesson;
      this.tell({ examples: this.shown.examples + examples, loss: loss_sum / examples, engine: trainer.engine, fresh, fresh_metrics });
      this.post(job, { event: "Trained", lease, examples, loss_sum, ...rest, state: isOwn ? this.stateOf(trainer) : undefined, tensors: { delta } });
    } catch (error) {
      this.post(job, { event: "TrainerFailed", lease, reason: told(error), traceback: "" });
    }
  }

  /** Write down that an update is about to leave. */
  private async participate(job: Employed, { term, version, lease }: Extract<Action, { action: "Participate" }>): Promise<void> {
    try {
      if (!job.ledger) throw new Error("this device keeps no account of what leaves it");
      await job.ledger.note(term, version);
    } catch (error) {
      return this.post(job, { event: "NotParticipated", term, lease, reason: `its participation could not be written down: ${told(error)}` });
    }
    this.post(job, { event: "Participated", term, version, lease });
  }

  private async evaluate(job: Employed, action: Extract<Action, { action: "Evaluate" }>): Promise<void> {
    const { lease, chunks, size } = action;
    try {
      const { examples, metrics } = await loaded(job, action.tensors.model).evaluate(chunks, size);
      this.post(job, { event: "EvaluationDone", lease, examples, metrics });
    } catch (error) {
      this.post(job, { event: "TrainerFailed", lease, reason: told(error), traceback: "" });
    }
  }

  private end(name: string): void {
    const job = this.jobs.get(name);
    if (!job) return;
    job.isOver = true;
    this.jobs.delete(name);
    for (const timer of job.timers.values()) clearTimeout(timer);
    if (job.trainer) job.trainer.interrupted = "the job is over here";
    void job.busy.then(() => job.trainer?.release());
    this.tell({ job: "", engine: "", done: 0, of: 0 });
  }

  private tell(news: Partial<Shown>): void {
    Object.assign(this.shown, news);
    this.emit("state", this.now);
    if (news.offer) this.emit("offer", news.offer);
    if (news.done !== undefined || news.leases !== undefined) {
      const { job, epoch, version, done, of, leases, examples, loss, fresh, fresh_metrics } = this.shown;
      this.emit("progress", { job, epoch, version, done, of, leases, examples, loss, fresh, fresh_metrics });
    }
  }

  private emit<Name extends keyof Events>(name: Name, news: Events[Name]): void {
    for (const hear of this.listeners[name]) hear(news);
  }
}

/** The job's trainer, with the model of the lease. */
function loaded(job: Employed, model: Float32Array | undefined): Trainer {
  if (!job.trainer) throw new Error("the trainer is gone");
  if (model && model.length !== job.trainer.model.length) throw new Error(`a model of ${model.length} values, not ${job.trainer.model.length}`);
  if (model) job.trainer.model = model;
  return job.trainer;
}

/** Whether a job trains on rows of the devices' own. */
function isLocal(assign: Plain): boolean {
  return assign.spec.plan.data === "local";
}

/** Whether updates of a job are masked before they leave. */
function isSealed(assign: Plain): boolean {
  return /\bsealed\b/.test(assign.spec.plan.trust ?? "");
}

function fresh(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function told(error: unknown): string {
  return clip(error instanceof Error ? error.message : String(error), 400);
}

/** As a visitor reads it. */
function inTheirWords(error: unknown): string {
  return error instanceof RefusedHere ? refusal(error.message) : told(error);
}

function now_s(): number {
  return performance.now() / 1000;
}
