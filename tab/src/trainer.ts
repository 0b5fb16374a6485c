// Trains and evaluates batches by the job's captured graphs, with ONNX Runtime in this thread. Proves itself by the one
// step whose result is known before it is ready, as `trainer/portable/steps.py` does.

import { type Array_, drawAll, type Drawn, epochOrder, mix, WindowShuffle, windowShards } from "./batches.ts";
import { Examples, type Rows, type ShardEntry } from "./examples.ts";
import { firstModel, type OwnLayout } from "./first_model.ts";
import { checkGraph } from "./graph.ts";
import { FILE_MAX_BYTES } from "./graph_rules.ts";
import { chooseRows, withLabels } from "./own_lease.ts";
import type { Engine, OwnRows, RowSource } from "./parts.ts";
import type { Plain } from "./protobuf.ts";
import { columnsFromPlain } from "./raw_columns.ts";
import { asFloats, readTensors, type Stored } from "./safetensors.ts";
import { SeenRows } from "./seen_rows.ts";
import type { Blobs } from "./session.ts";
import { say } from "./words.ts";
import type { MetricSum } from "./worker_role.ts";

/** How far an update may be from the one that is known, as a part of its length. */
const PROOF_ERROR = 1e-2;
/** How many times as far a lease of one plain step goes, so that rounding of the weights is nothing: as `trainer/portable/steps.py` has it. */
const STEP_SCALE = 2 ** 32;
const EVALUATION = 0x6576616c;
const EVALUATION_CHUNK = 1000;

/* eslint-disable @typescript-eslint/no-explicit-any */
const TYPES: Record<string, [string, any]> = {
  F32: ["float32", Float32Array], F64: ["float64", Float64Array], U8: ["uint8", Uint8Array], BOOL: ["bool", Uint8Array],
  I8: ["int8", Int8Array], I16: ["int16", Int16Array], U16: ["uint16", Uint16Array], I32: ["int32", Int32Array],
  U32: ["uint32", Uint32Array], I64: ["int64", BigInt64Array], U64: ["uint64", BigUint64Array], F16: ["float16", Uint16Array],
};

/** This device's own rows, and how many of them it was done with. */
interface Own { rows: OwnRows; seen: SeenRows }

export interface Lesson {
  /** Of the part of the model that devices share. Nothing else of a model leaves. */
  delta: Float32Array;
  /** The device's own part as the lease left it, if the model has one. */
  own: Float32Array;
  examples: number; loss_sum: number; seconds: number;
  /** Of own rows: how many new ones were evaluated before the training, what that gave, and the labels that are reported. */
  fresh?: number; fresh_metrics?: MetricSum[]; labels?: number[];
}

export class Trainer {
  model: Float32Array;
  /** The device's own part of the model, as a lease begins; empty if all of it is shared. */
  ownPart: Float32Array;
  private states: any[] = [];
  private count = 0;
  private evaluation: any = null;
  private windows: WindowShuffle | null = null;
  private order: { epoch: number; places: Uint32Array } | null = null;
  /** Why the lease under way is to end; empty: it is not. */
  interrupted = "";
  private ort: any = null;
  /** Takes a step by the processor, and by graphics where that was chosen. */
  private processor: any = null;
  private graphics: any = null;
  private isChosen = false;
  /** Why the graphics processor does not compute. */
  private why = "";
  /** How many own rows this device had when they were last counted. */
  held = 0;

  private constructor(
    private readonly spec: Plain, private readonly graphs: Plain, private readonly file: Map<string, Stored>, private readonly step_: Uint8Array,
    private readonly evaluate_: Uint8Array, private readonly train_: Examples, private readonly test: Examples, first: Float32Array,
    private readonly parameters: number, readonly ownLayout: OwnLayout | null, readonly firstOwn: Float32Array, private readonly runtime: Engine,
    private readonly own: Own | null,
  ) {
    this.model = first;
    this.ownPart = firstOwn;
    const { plan } = spec;
    if (plan.shuffle === "window") this.windows = new WindowShuffle(train_.rows, plan.seed, train_.window);
  }

  /** What computes, and why nothing faster does, for a person. */
  get engine(): string {
    if (this.graphics) return "WebGPU";
    return this.why ? `${this.runtime.name}\n${this.why}` : this.runtime.name;
  }

  /** Bring everything here by its hash, load it, and prove the known batch. `isGraphicsWanted`: even where it is slower. `source`:
   * where this device has rows of its own, for a job that trains on them. */
  static async prepare(
    spec: Plain, blobs: Blobs, engine: Engine, source: RowSource | undefined, isGraphicsWanted: boolean, tell: (what: string) => void,
  ): Promise<Trainer> {
    tell(say("why.fetching-model"));
    const file = await blobs.fetch(spec.graphs);
    if (file.length > FILE_MAX_BYTES) throw new Error(`the graphs of a job have ${file.length} bytes`);
    const { tensors, notes } = readTensors(file);
    const graphs = JSON.parse(notes.portable);
    if (graphs.format !== 1) throw new Error(`graphs of format ${graphs.format}, which this program does not know: load a newer one`);
    const [train, evaluate] = ["train", "evaluate"].map((name) => tensors.get(name)!.bytes.slice());
    for (const graph of [train, evaluate]) checkGraph(graph);
    const own = spec.plan.data === "local" ? await ownRows(graphs.columns, source) : null;
    const { first, parameters, own: ownLayout } = firstModel(await blobs.fetch(spec.initial));
    const kept = tensors.get("own"), firstOwn = kept ? asFloats(kept) : new Float32Array();
    if (firstOwn.length !== (ownLayout?.values ?? 0)) throw new Error("the job's graphs have another own part of the model than its first model");
    const cacheBytes = (spec.plan.cache_mb ?? 0) * 2 ** 20;
    const [trainSet, testSet] = [await examples(spec.train, blobs, tell, spec.plan.shuffle === "window", cacheBytes), await examples(spec.test, blobs, tell)];
    // Not during a lease, whose time is short.
    if (spec.plan.shuffle !== "window") await trainSet.fetchAll();
    const made = new Trainer(spec, graphs, tensors, train, evaluate, trainSet, testSet, first, parameters, ownLayout, firstOwn, engine, own);
    await made.recount();
    tell(say("why.trying"));
    await made.chooseEngine(isGraphicsWanted);
    return made;
  }

  /** The processor has to prove itself. The graphics processor has to agree with it on a whole batch too, and be faster. */
  private async chooseEngine(isGraphicsWanted: boolean): Promise<void> {
    this.why = await this.runtime.whyNoGraphics();
    if (!this.why) {
      try {
        // This build computes by the processor as well: a tab loads one of the two.
        this.ort = await this.runtime.load("graphics");
        this.processor = await this.runtime.session(this.ort, this.step_);
      } catch (error) {
        console.info(`the engine for graphics: ${error}`);
        this.why = "the engine for graphics does not run this job";
      }
    }
    if (!this.processor) {
      this.ort = await this.runtime.load("plain");
      this.processor = await this.runtime.session(this.ort, this.step_);
    }
    const wrong = await this.whyWrong();
    if (wrong) throw new Error(`this device computes ${wrong}; it does not train this job`);
    if (this.why) return;
    try {
      this.why = await this.tryGraphics(isGraphicsWanted);
    } catch (error) {
      console.info(`the graphics processor: ${error}`);
      this.why = "the graphics processor does not run this job";
    }
    if (this.why) await this.dropGraphics();
    this.isChosen = true;
  }

  /** Why the graphics processor is not taken; empty: it is. */
  private async tryGraphics(isGraphicsWanted: boolean): Promise<string> {
    const many = Math.min(this.spec.plan.batch_size, this.train_.count);
    const rows = many ? await this.train_.take(Array.from({ length: many }, (_, i) => i)) : this.knownRows;
    const byProcessor = await this.timed(rows);
    this.graphics = await this.runtime.session(this.ort, this.step_, true);
    const wrong = await this.whyWrong();
    if (wrong) {
      console.info(`the graphics processor computes ${wrong}`);
      return "the graphics processor computes otherwise";
    }
    const byGraphics = await this.timed(rows);
    // What tells nothing in the known batch, such as Adam's step along a gradient of rounding alone, tells nothing here.
    const wanted = this.known.map((value, i) => (Number.isFinite(value) ? byProcessor.after[i * this.stride] - this.model[i * this.stride] : NaN));
    const error = this.apart(byGraphics.after, wanted);
    if (!(error <= PROOF_ERROR)) {
      console.info(`the graphics processor computes a batch otherwise than WebAssembly, by ${error.toPrecision(2)} of the update`);
      return "the graphics processor computes otherwise";
    }
    return byGraphics.ms < byProcessor.ms || isGraphicsWanted ? "" : "the graphics processor is slower";
  }

  /** The second of two steps on the same batch: the first one may compile. At a rate so high that rounding of weights is nothing. */
  private async timed(rows: Record<string, Rows>): Promise<{ after: Float32Array; ms: number }> {
    const { proof } = this.graphs;
    const draws = drawAll(this.graphs.draws, Object.values(rows)[0].shape[0], BigInt(proof.seed));
    const take = () => {
      this.begin();
      return this.step(this.model, this.firstOwn, rows, proof.rate, proof.weight_decay, draws);
    };
    await take();
    const began = performance.now();
    const { after } = await take();
    const ms = performance.now() - began;
    this.begin();
    return { after, ms };
  }

  private async dropGraphics(): Promise<void> {
    const { graphics } = this;
    this.graphics = null;
    await graphics?.release().catch(() => undefined);
  }

  /** Take the one step whose result is known. How that differs; empty: it does not. */
  private async whyWrong(): Promise<string> {
    const proof = this.graphs.proof;
    const columns = this.knownRows;
    const examples = Object.values(columns)[0].shape[0];
    this.begin();
    const draws = drawAll(this.graphs.draws as Drawn[], examples, BigInt(proof.seed));
    const { after, loss } = await this.step(this.model, this.firstOwn, columns, proof.rate, proof.weight_decay, draws);
    const error = this.apart(after, this.known);
    this.begin();
    if (error <= PROOF_ERROR && Math.abs(loss - proof.loss) <= PROOF_ERROR * (1 + Math.abs(proof.loss))) return "";
    return (
      `the job's known batch otherwise than PyTorch: its update differs by ${error.toPrecision(2)} of its length,` +
      ` its loss is ${loss.toPrecision(6)} and not ${proof.loss.toPrecision(6)}`
    );
  }

  private get knownRows(): Record<string, Rows> {
    const columns: Record<string, Rows> = {};
    for (const [name, { dtype, shape, bytes }] of this.file) {
      if (name.startsWith("column.")) columns[name.slice(7)] = { type: dtype, shape, bytes };
    }
    return columns;
  }

  /** What the known batch changes in every so many-th value; no number where that tells nothing. */
  private get known(): Float32Array {
    return asFloats(this.file.get("proof")!);
  }

  private get stride(): number {
    return Math.max(1, this.graphs.proof.stride);
  }

  /** The distance of an update from the one that is wanted, as a part of its length. */
  private apart(after: Float32Array, wanted: Float32Array): number {
    let off = 0, length = 0;
    for (let i = 0; i < wanted.length; i++) {
      if (!Number.isFinite(wanted[i])) continue;
      const at = i * this.stride;
      off += (after[at] - this.model[at] - wanted[i]) ** 2;
      length += wanted[i] ** 2;
    }
    return Math.sqrt(off) / Math.max(Math.sqrt(length), 1e-30);
  }

  /** An optimiser that was just built. */
  private begin(): void {
    this.states = Array.from({ length: this.graphs.states }, () => this.tensor("float32", new Float32Array(this.parameters + (this.ownLayout?.parameters ?? 0))));
    this.count = 0;
  }

  /** Train these batches, in order. */
  async train(epoch: number, batches: number[], rate: number, onBatch: (done: number) => void): Promise<Lesson> {
    const { plan } = this.spec;
    return this.trainBatches(batches.length, rate, onBatch, async (i) => {
      const rows = await this.train_.take(this.places(epoch, batches[i] * plan.batch_size, (batches[i] + 1) * plan.batch_size));
      return { rows, seed: mix(plan.seed, epoch, batches[i]) };
    });
  }

  /** Count this device's own rows again. */
  async recount(): Promise<number> {
    if (this.own) this.held = await this.own.rows.look();
    return this.held;
  }

  /** Evaluate the new rows, then train on this many of this device's own rows. */
  async learn(epoch: number, lease: number, examples: number, rate: number, begin: (batches: number) => void, onBatch: (done: number) => void): Promise<Lesson> {
    const began = performance.now();
    const { own, spec: { job, plan } } = this;
    if (!own) throw new Error("this job's examples are not the device's own");
    const held = await this.recount();
    if (!held) throw new Error("this device has no rows of its own yet");
    const passes = plan.local_epochs || 1;
    const chosen = chooseRows({ seed: plan.seed, batch_size: plan.batch_size, passes }, held, own.seen.count(job), epoch, lease, examples);
    begin(chosen.parts.length);
    const sums: number[] = [];
    let fresh = 0, labels: number[] = [];
    for (const span of chosen.judged) {
      await this.judge(await own.rows.take(span), this.ownPart, mix(plan.seed, EVALUATION, epoch, lease), sums);
      fresh += span.length;
      await this.breathe();
    }
    const learned = await this.trainBatches(chosen.parts.length, rate, onBatch, async (i) => {
      const rows = await own.rows.take(chosen.parts[i]);
      if (plan.share_labels && i < chosen.first_pass) labels = withLabels(labels, rows);
      return { rows, seed: mix(plan.seed, epoch, lease, i) };
    });
    // Before anyone hears of it: what was trained on is never judged again, whatever happens next.
    await own.seen.note(job, held);
    const fresh_metrics = fresh ? this.metricsOf(sums) : [];
    return { ...learned, examples: chosen.examples, loss_sum: learned.loss_sum / passes, seconds: (performance.now() - began) / 1000, fresh, fresh_metrics, labels };
  }

  private async trainBatches(batches: number, rate: number, onBatch: (done: number) => void, take: (i: number) => Promise<{ rows: Record<string, Rows>; seed: bigint }>): Promise<Lesson> {
    const began = performance.now();
    const { plan } = this.spec;
    if (plan.inner_state !== "kept") this.begin();
    const scaled = this.graphs.rate * (rate ? rate / plan.learning_rate : 1);
    const scale = batches === 1 && !this.graphs.states ? STEP_SCALE : 1;
    let vector = this.model, own = this.ownPart, loss_sum = 0, examples = 0;
    for (let i = 0; i < batches; i++) {
      const { rows, seed } = await take(i);
      const count = Object.values(rows)[0].shape[0];
      const draws = drawAll(this.graphs.draws, count, seed);
      const { after, ownAfter, loss } = await this.step(vector, own, rows, scaled * scale, this.graphs.weight_decay, draws);
      [vector, own] = [after, ownAfter];
      loss_sum += loss * count;
      examples += count;
      onBatch(i + 1);
      await this.breathe();
    }
    // Buffers, which come last, do not depend on the rate.
    const delta = vector.map((value, i) => Math.fround(value - this.model[i]) / (i < this.parameters ? scale : 1));
    const parameters = this.ownLayout?.parameters ?? 0;
    const ownAfter = own.map((value, i) => this.ownPart[i] + Math.fround(Math.fround(value - this.ownPart[i]) / (i < parameters ? scale : 1)));
    const isFinite = delta.every(Number.isFinite) && ownAfter.every(Number.isFinite);
    return { delta, own: ownAfter, examples, loss_sum: isFinite ? loss_sum : NaN, seconds: (performance.now() - began) / 1000 };
  }

  async evaluate(chunks: number[], size: number): Promise<{ examples: number; metrics: MetricSum[] }> {
    const step = size || EVALUATION_CHUNK, batch = this.spec.plan.batch_size;
    const sums: number[] = [];
    let examples = 0;
    for (const chunk of chunks) {
      const stop = Math.min((chunk + 1) * step, this.test.count);
      for (let low = chunk * step; low < stop; low += batch) {
        const high = Math.min(low + batch, stop);
        const rows = await this.test.take(Array.from({ length: high - low }, (_, i) => low + i));
        // With the first own part, so that all devices agree.
        await this.judge(rows, this.firstOwn, mix(this.spec.plan.seed, EVALUATION, low), sums);
        examples += high - low;
        await this.breathe();
      }
    }
    return { examples, metrics: this.metricsOf(sums) };
  }

  /** Evaluate these rows by the model as it came, and add the results to the sums. */
  private async judge(rows: Record<string, Rows>, own: Float32Array, seed: bigint, sums: number[]): Promise<void> {
    this.evaluation ??= await this.runtime.session(this.ort, this.evaluate_);
    const draws = drawAll(this.graphs.evaluation_draws, Object.values(rows)[0].shape[0], seed);
    const feed = this.feed(this.evaluation, { vector: this.tensor("float32", this.model), own: this.tensor("float32", own), ...this.columns(rows), ...this.drawn(draws) });
    const found = await this.withoutValues<Record<string, any>>(this.evaluation.run(feed));
    (found[this.evaluation.outputNames[0]].data as Float32Array).forEach((sum, i) => (sums[i] = (sums[i] ?? 0) + Number(sum)));
  }

  private metricsOf(sums: number[]): MetricSum[] {
    let at = 0;
    return (this.graphs.metrics as any[]).map(({ name, kind, sums: many, lower }) => ({ name, kind, lower, sums: sums.slice(at, (at += many)) }));
  }

  /** Replace the engine's text about a value of a row: errors are reported, and rows stay here. */
  private async withoutValues<T>(running: Promise<T>): Promise<T> {
    if (!this.own) return running;
    return running.catch((error: unknown) => {
      if (/alloc/i.test(String(error))) throw new Error("the engine has too little memory for these rows");
      throw new Error("the job's step does not take these rows: look for a whole number outside the task's classes");
    });
  }

  private places(epoch: number, start: number, stop: number): Uint32Array {
    if (this.windows) return this.windows.indices(epoch, start, Math.min(stop, this.train_.count));
    if (this.order?.epoch !== epoch) this.order = { epoch, places: epochOrder(this.train_.count, this.spec.plan.seed, epoch) };
    return this.order.places.subarray(start, stop);
  }

  private async step(
    vector: Float32Array, own: Float32Array, rows: Record<string, Rows>, rate: number, decay: number, draws: Record<string, Array_>,
  ): Promise<{ after: Float32Array; ownAfter: Float32Array; loss: number }> {
    this.count += 1;
    const given: Record<string, any> = {
      vector: this.tensor("float32", vector),
      own: this.tensor("float32", own),
      count: this.tensor("float32", Float32Array.of(this.count), []),
      // Graphs of earlier releases have it so.
      step: this.tensor("float64", Float64Array.of(this.count), []),
      rate: this.tensor("float32", Float32Array.of(rate), []),
      weight_decay: this.tensor("float32", Float32Array.of(decay), []),
      ...this.columns(rows), ...this.drawn(draws),
    };
    this.states.forEach((state, i) => (given[`state${i}`] = state));
    const found = await this.withoutValues(this.run(this.feed(this.processor, given)));
    const [after, ...rest] = (this.processor.outputNames as string[]).map((name) => found[name]);
    const ownAfter = this.ownLayout ? (rest.shift().data as Float32Array) : own;
    this.states = rest.slice(0, -1);
    return { after: after.data as Float32Array, ownAfter, loss: Number(rest.at(-1).data[0]) };
  }

  private async run(feed: Record<string, any>): Promise<Record<string, any>> {
    if (!this.graphics) return this.processor.run(feed);
    try {
      return await this.graphics.run(feed);
    } catch (error) {
      if (!this.isChosen) throw error;
      // A driver that crashed, say: the same step again by the processor, and all others.
      console.info(`the graphics processor: ${error}`);
      this.why = "the graphics processor failed";
      await this.dropGraphics();
      return this.processor.run(feed);
    }
  }

  private columns(rows: Record<string, Rows>): Record<string, any> {
    return Object.fromEntries(Object.entries(rows).map(([name, { type, shape, bytes }]) => {
      const [kind, Kind] = TYPES[type] ?? [];
      if (!kind) throw new Error(`a column of type ${type}, which this program does not read`);
      return [`column.${name}`, this.tensor(kind, new Kind(bytes.slice().buffer), shape)];
    }));
  }

  private drawn(draws: Record<string, Array_>): Record<string, any> {
    return Object.fromEntries(Object.entries(draws).map(([name, { type, data, dims }]) => [name, this.tensor(type, data, dims)]));
  }

  private tensor(type: string, data: any, dims = [data.length]): any {
    return new this.ort.Tensor(type, data, dims);
  }

  private feed(session: any, given: Record<string, any>): Record<string, any> {
    return Object.fromEntries((session.inputNames as string[]).map((name) => {
      if (!(name in given)) throw new Error(`the job's graph reads ${name}, which this program does not have`);
      return [name, given[name]];
    }));
  }

  /** Let sockets and timers speak between batches, and end a lease that is out of time. */
  private async breathe(): Promise<void> {
    await new Promise<void>((resolve) => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => {
        // Node stays alive for a port that is open.
        channel.port1.close();
        resolve();
      };
      channel.port2.postMessage(null);
    });
    if (this.interrupted) throw new Error(this.interrupted);
  }

  async release(): Promise<void> {
    await this.dropGraphics();
    await this.processor.release();
    await this.evaluation?.release();
  }
}

/** This device's rows, in the form that the job declares. Fails if it has none, or in another form. */
async function ownRows(plain: unknown, source: RowSource | undefined): Promise<Own> {
  const columns = columnsFromPlain(plain);
  if (!columns.length) throw new Error("the job's graphs do not say what rows devices have: submit it again from a newer release");
  if (!source) throw new Error("this device has no rows of its own");
  return { rows: await source.open(columns), seen: await SeenRows.read(source) };
}

/** A set whose shards are fetched when a batch first needs them. */
async function examples(set: Plain, blobs: Blobs, tell: (what: string) => void, isWindowed = false, cacheBytes = 0): Promise<Examples> {
  if (!set.examples) return new Examples([], () => Promise.reject(new Error("a set without examples")));
  const manifest = JSON.parse(new TextDecoder().decode(await blobs.fetch(set.manifest)));
  const entries = manifest.shards as ShardEntry[];
  const window = isWindowed ? windowShards(cacheBytes, Math.max(1, ...entries.map(({ bytes }) => bytes))) : 0;
  const found = new Examples(entries, (sha256) => {
    tell(say("why.fetching-examples"));
    return blobs.fetch(sha256);
  }, window);
  if (found.count !== set.examples) throw new Error(`a set of ${found.count} examples where the job says ${set.examples}`);
  return found;
}
