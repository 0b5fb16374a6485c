// Built from tab/src by `python tools/tasks.py tab`; do not edit.

// src/words.ts
var EN = {
  title: "Train with this browser",
  "lead.cluster": "The cluster {0} asks this device to help train a model.",
  "lead.operator": "The cluster {0} asks this device to help train a model. It is run by: {1}",
  "lead.unknown": "A cluster asks this device to help train a model.",
  purpose: "What for: {0}",
  "job.minute": "The job {0} downloads up to {1} MB once, then moves about {2} MB a minute.",
  "job.update": "The job {0} downloads up to {1} MB once, then moves about {2} MB for each update.",
  "job.unknown": "The job {0} does not say how much it downloads.",
  "job.none": "There is no job now. When there is one, this page says how much it downloads, and asks you first.",
  "ask.warm": "It computes while it is open and in front. Your device gets warm and uses power.",
  "ask.sends": "It sends back what the model learned from the job's own examples.",
  "ask.never-reads": "It reads none of your files, photos, contacts or places.",
  "ask.reads": "It reads no file, photo, contact or place of yours, except the files that you give it below.",
  "ask.keeps": "What it downloads stays in this browser, so that it is downloaded once. Leave this cluster deletes it.",
  "ask.stop": "You can stop at any time. Nothing is lost: another device does the rest.",
  "later.label": "Take part in later jobs of this cluster too, up to {0} MB each",
  agree: "Agree and train",
  again: "Train again as {0}",
  "no-link": "To take part, open the link, or scan the code, that the people who run the cluster gave you.",
  "take-job": "Download and train",
  "no-thanks": "No, stop",
  "own.title": "Your rows",
  "own.lead": "The job {0} learns from rows of your own. They stay in this browser.",
  "own.none": "No rows yet. Without any, this device does not train that job.",
  "own.held-one": "1 row is kept here, and nowhere else.",
  "own.held": "{0} rows are kept here, and nowhere else.",
  "own.files": "Add files",
  "own.tables": "A .npz or .csv file with these columns: {0}.",
  "own.pictures": "Or pictures. They are kept at {0} x {1} pixels: the middle of each, scaled.",
  "own.class": "The pictures show",
  "own.class-number": "The class of the pictures, as a number",
  "own.add-row": "Add this row",
  "own.yes": "yes",
  "own.no": "no",
  "own.no-pictures": "this job takes .npz and .csv files",
  "own.added-one": "1 row was added.",
  "own.added": "{0} rows were added.",
  "own.kept": "This is what was kept of them:",
  "own.forget": "Delete my rows",
  "own.leaves": "What leaves this device for the job {0}",
  "leaves.change": "What the model learned from your rows, as changes of its numbers. An expert can sometimes work back from such changes to a row, and this job makes no promise against that.",
  "leaves.change-private": "What the model learned from your rows, as changes of its numbers, shortened to a length that is the same for everyone. The cluster adds noise before others see a version: epsilon {0}, delta {1}. It happens at most {2} times.",
  "leaves.held": "How many rows you have.",
  "leaves.lesson": "For each update: how many rows it used, how long that took, and the model's loss on them.",
  "leaves.lesson-private": "For each update: how long it took. The loss, and how many rows it used, stay here.",
  "leaves.fresh": "How many of your rows are new, and how good the model was on them before it learned from them.",
  "leaves.labels": "How many of your rows each class has.",
  "leaves.account": "How often you took part, and how much of the promise that has used up.",
  "leaves.device": "What this device is: {0}.",
  "leaves.failure": "If rows do not fit or the training fails: the reason with the name of a column, and never a value.",
  "leaves.stays": "A part of the model is for this device alone. What it learns is kept here and never sent, and goes when the rows are deleted.",
  "leaves.never": "No row leaves, and no name of a file.",
  leases: "updates sent",
  examples: "examples trained",
  loss: "last loss",
  job: "job",
  node: "this device",
  traffic: "data",
  engine: "computes by",
  progress: "batches of this lease",
  none: "none",
  down: "{0} MB down",
  up: "{0} MB up",
  stop: "Stop",
  "go-on": "Go on",
  details: "When it rests, and what computes",
  "allow-hidden": "Train in the background too",
  "allow-battery": "Train on a battery below 30 %",
  "allow-metered": "Train over mobile data",
  "want-graphics": "Use the graphics processor even if it is slower, from the next job on",
  forget: "Leave this cluster",
  "state.new": "",
  "state.joining": "Joining",
  "state.connecting": "Connecting",
  "state.waiting": "Connected",
  "state.asking": "A new job",
  "state.working": "Training",
  "state.paused": "Resting",
  "state.stopped": "Stopped",
  "state.refused": "Not let in",
  "state.elsewhere": "Open in another tab",
  "state.broken": "This browser cannot train",
  "why.elsewhere": "This browser already takes part in another tab. Close that one, and this one goes on.",
  "why.broken": "WebAssembly or module workers are missing.",
  "why.joining": "making a key and joining",
  "why.calling": "calling the cluster",
  "why.closed": "the connection was closed",
  "why.silent": "the cluster does not answer",
  "why.offline": "This device is offline. This page asks the cluster again when it is online.",
  "why.unreachable": "the cluster cannot be reached",
  "why.no-job": "connected; there is no job for this device now",
  "why.no-other-job": "{0}; there is no other job for this device now",
  "why.no-work": "there is no work now; this page asks again later",
  "why.led-elsewhere": "{0} leads this job, and a page cannot reach it",
  "why.no-rows": "the job {0} learns from rows that a device has, and this one gives none",
  "why.sealed": "the job {0} masks its updates, and this program has no masks",
  "why.rows-gone": "its user deleted the rows",
  "why.asking": "{0} waits for your answer; nothing was downloaded",
  "why.stopped": "stopped; what was not sent goes to another device",
  "why.hidden": "this page is in the background",
  "why.metered": "this connection may cost money",
  "why.battery": "the battery is below {0} % and is not charging",
  "why.left": "stopped by its user",
  "why.gone": "its user left the cluster",
  "why.fetching-model": "fetching the graphs and the model",
  "why.fetching-examples": "fetching examples",
  "why.trying": "loading the engine and trying the known batch",
  "why.sent": "sent; waiting for the next version",
  "why.evaluating": "trying version {0} on examples held out",
  "why.batch": "1 batch of epoch {1}",
  "why.batches": "{0} batches of epoch {1}",
  "refused.used": "This link was used already. Ask for another.",
  "refused.expired": "This link is too old. Ask for another.",
  "refused.unknown": "This link is not known here. Ask for another.",
  "refused.twice": "Another device uses this browser's key: a copy of its profile, say. Ask for another link.",
  "refused.out": "The people who run the cluster shut this device out.",
  "refused.old": "This browser's permit is not valid any more. Ask for another link.",
  "refused.other": "The cluster refused: {0}"
};
var LANGUAGES = { en: EN };
function say(word, ...values) {
  const language = globalThis.navigator?.language?.slice(0, 2) ?? "en";
  const text = LANGUAGES[language]?.[word] ?? EN[word];
  return text.replace(/\{(\d)\}/g, (_, i) => String(values[Number(i)]));
}
var REFUSALS = [
  [/used up/, "refused.used"],
  [/token has expired/, "refused.expired"],
  [/token is unknown|not a token/, "refused.unknown"],
  [/use the identity of/, "refused.twice"],
  [/revoked/, "refused.out"],
  [/certificate/, "refused.old"]
];
function refusal(reason) {
  const told2 = REFUSALS.find(([pattern]) => pattern.test(reason));
  return told2 ? say(told2[1]) : say("refused.other", reason);
}
function inWords(phase, reason, work) {
  if (phase === "training" && work) return say(work.batches.length === 1 ? "why.batch" : "why.batches", work.batches.length, work.epoch + 1);
  if (phase === "evaluating" && work) return say("why.evaluating", work.version);
  if (phase === "waiting" && reason.startsWith("the update was sent")) return say("why.sent");
  return reason;
}

// src/identity.ts
var RefusedHere = class extends Error {
};
var ECDSA = { name: "ECDSA", namedCurve: "P-256" };
var SIGN = { name: "ECDSA", hash: "SHA-256" };
var FORM = "shoal tab 1";
async function about(door, secret, identity) {
  const given = identity ? { certificate_pem: identity.certificate_pem } : { secret };
  return await asked(door, "/about", given);
}
async function asked(door, path, question) {
  const answer2 = await door.post(path, JSON.stringify(question)).catch(() => {
    throw new Error(say("why.unreachable"));
  });
  const told2 = await answer2.json();
  if (!answer2.ok) throw new RefusedHere(told2.refused ?? String(answer2.status));
  return told2;
}
async function join(door, keys, secret, wanted) {
  const pair = await crypto.subtle.generateKey(ECDSA, keys.isExtractable, ["sign", "verify"]);
  const told2 = await asked(door, "/enrol", { secret, wanted, csr_pem: await request(pair, wanted) });
  const identity = { node: told2.node, cluster: told2.cluster, certificate_pem: told2.certificate_pem, key: pair.privateKey };
  await keys.save(identity);
  return identity;
}
async function answer(door, identity, told2, verb, incarnation) {
  if (told2.origin !== door.origin) throw new Error(`the door says that it is ${told2.origin}`);
  const text = [FORM, told2.origin, verb, incarnation, told2.challenge].join("\n");
  const signature = await signed(identity.key, new TextEncoder().encode(text));
  return JSON.stringify({ certificate_pem: identity.certificate_pem, signature: base64(signature), verb, incarnation });
}
async function signed(key, content) {
  const raw = new Uint8Array(await crypto.subtle.sign(SIGN, key, content));
  return der(48, integer(raw.subarray(0, 32)), integer(raw.subarray(32)));
}
async function request(pair, wanted) {
  const commonName = der(48, Uint8Array.of(6, 3, 85, 4, 3), der(12, new TextEncoder().encode(wanted)));
  const key = new Uint8Array(await crypto.subtle.exportKey("spki", pair.publicKey));
  const body = der(48, Uint8Array.of(2, 1, 0), der(48, der(49, commonName)), key, Uint8Array.of(160, 0));
  const algorithm = der(48, Uint8Array.of(6, 8, 42, 134, 72, 206, 61, 4, 3, 2));
  const bits2 = der(3, Uint8Array.of(0), await signed(pair.privateKey, body));
  const text = base64(der(48, body, algorithm, bits2)).replace(/.{64}/g, "$&\n").trimEnd();
  return `-----BEGIN CERTIFICATE REQUEST-----
${text}
-----END CERTIFICATE REQUEST-----
`;
}
function der(tag, ...parts3) {
  const size = parts3.reduce((sum, part2) => sum + part2.length, 0);
  const head = size < 128 ? [tag, size] : size < 256 ? [tag, 129, size] : [tag, 130, size >> 8, size & 255];
  const whole3 = new Uint8Array(head.length + size);
  whole3.set(head);
  let at = head.length;
  for (const part2 of parts3) {
    whole3.set(part2, at);
    at += part2.length;
  }
  return whole3;
}
function integer(bytes) {
  let start = 0;
  while (start < bytes.length - 1 && !bytes[start]) start++;
  const short = bytes.subarray(start);
  return der(2, short[0] & 128 ? Uint8Array.of(0, ...short) : short);
}
function base64(bytes) {
  return btoa(String.fromCharCode(...bytes));
}

// src/own_values.ts
var OWN = "own-";
var JOBS = `${OWN}jobs`;
var JOBS_KEPT = 20;
var ID = /^[a-z0-9][a-z0-9-]{0,62}$/;
var OwnValues = class _OwnValues {
  /** `values`: what the next lease begins with. */
  constructor(source, job, layout, values) {
    this.source = source;
    this.job = job;
    this.layout = layout;
    this.values = values;
  }
  source;
  job;
  layout;
  values;
  /** The result of a lease, until the leader has answered. */
  made_ = null;
  /** The leases that were taken last, each with what it began with. */
  taken = [];
  isListed = false;
  /** What an earlier program kept, or `first` if there is none. A text that cannot be read, or is of another model, is set aside. */
  static async read(source, job, layout, first) {
    let kept = null;
    try {
      const text = await source.recall(nameOf(job));
      if (text) kept = valuesOf(text, job, layout, first.length);
    } catch (error) {
      console.info(`the device's own part of the model begins again: ${error}`);
    }
    return new _OwnValues(source, job, layout, kept ?? first.slice());
  }
  made(lease, values) {
    this.made_ = { lease, values };
  }
  /** Go on from what this lease made, durably; or from what was there before it. `undoable`: how many of the leases that were
   * taken last may be taken back. */
  async settle(lease, taken, undoable) {
    if (this.made_?.lease === lease) {
      const { values } = this.made_;
      this.made_ = null;
      if (!taken) return;
      this.taken = [...this.taken, { lease, before: this.values }].slice(-undoable);
      this.values = values;
      await this.keep();
    } else if (!taken && this.taken.at(-1)?.lease === lease) {
      await this.undo(1);
    }
  }
  /** Go back, durably, to what was there before the leases that were taken last. */
  async undo(leases) {
    const back = this.taken.slice(-leases);
    if (!back.length) return;
    this.values = back[0].before;
    this.taken = this.taken.slice(0, -back.length);
    await this.keep();
  }
  /** If it cannot be written, the next program goes on from an older one. */
  async keep() {
    try {
      await this.list();
      await this.source.keep(nameOf(this.job), JSON.stringify({ job: this.job, layout: this.layout, values: packed(this.values) }));
    } catch (error) {
      console.info(`the device's own part of the model could not be written down: ${error}`);
    }
  }
  /** Note that this job has one, and let go of those of the oldest jobs. */
  async list() {
    if (this.isListed) return;
    const listed = await this.source.recall(JOBS).then((text) => JSON.parse(text || "[]")).catch(() => []);
    const isOther = (each) => typeof each === "string" && ID.test(each) && each !== this.job;
    const jobs = [...Array.isArray(listed) ? listed.filter(isOther) : [], this.job];
    for (const oldest of jobs.slice(0, -JOBS_KEPT)) await this.source.keep(nameOf(oldest), "");
    await this.source.keep(JOBS, JSON.stringify(jobs.slice(-JOBS_KEPT)));
    this.isListed = true;
  }
};
function nameOf(job) {
  return `${OWN}${job}.json`;
}
function packed(values) {
  const bytes = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
  const parts3 = [];
  for (let at = 0; at < bytes.length; at += 8192) parts3.push(String.fromCharCode(...bytes.subarray(at, at + 8192)));
  return btoa(parts3.join(""));
}
function valuesOf(text, job, layout, size) {
  const told2 = parsed(text);
  const isOfIt = told2?.job === job && told2.layout === layout && typeof told2.values === "string" && told2.values.length === lettersOf(size);
  if (!isOfIt) throw new Error("it is of another model");
  const values = unpacked(told2.values);
  if (!values.every(Number.isFinite)) throw new Error("it has values that are not finite");
  return values;
}
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    throw new Error("it is damaged");
  }
}
function lettersOf(values) {
  return Math.ceil(values * Float32Array.BYTES_PER_ELEMENT / 3) * 4;
}
function unpacked(text) {
  const letters = atob(text), bytes = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i++) bytes[i] = letters.charCodeAt(i);
  return new Float32Array(bytes.buffer);
}

// src/blt_table.ts
var TABLE = {
  128: { decays: [0.368267953876, 0.812592104092, 0.978487743406, 0.999999999999], weights: [0.133220216212, 0.190862094317, 0.180141227847, 12e-12] },
  256: { decays: [0.495932120154, 0.891642835534, 0.989076550976, 0.999999999448], weights: [0.195677738535, 0.175187057604, 0.130948324281, 133e-12] },
  512: { decays: [0.356982559078, 0.781209890028, 0.94923306327, 0.994563577849], weights: [0.12561989068, 0.167315073843, 0.116621329117, 0.092402256121] },
  1024: { decays: [0.663618473832, 0.959751048459, 0.997113465257, 0.997743402673], weights: [0.278552087586, 0.141882922324, 0.070319469989, 10789186e-12] },
  2048: { decays: [0.720452895921, 0.973910580573, 0.998423469129, 0.9999999987], weights: [0.302539992682, 0.126304692259, 0.052377688582, 641033324e-12] },
  4096: { decays: [0.763780933452, 0.982224361259, 0.999078074673, 1], weights: [0.317618661343, 0.112819581259, 0.039636509151, 0.00148563874] },
  8192: { decays: [0.801791094083, 0.987965422075, 0.999467631379, 0.999999889183], weights: [0.327310761904, 0.099760722802, 0.030076957969, 0.001662731834] },
  16384: { decays: [0.696465412037, 0.968068143759, 0.997122357476, 0.999815553625], weights: [0.29353225652, 0.132281063303, 0.041438342159, 0.018058087552] }
};

// src/privacy.ts
var DELTA = 1e-5;
var ROUNDING = 1e-9;
var EPSILON_MAX = 1e6;
var HALVINGS = 60;
function privacyOf(plan) {
  const private_ = /private\(\s*([^,)\s]+)\s*(?:,\s*([^)\s]+)\s*)?\)/.exec(plan.trust ?? "");
  if (!private_ || plan.until?.epochs == null) return null;
  const pace = plan.pace === "auto" ? "sync" : plan.pace;
  const devices = pace === "sync" ? plan.cohort : pace === "buffered" ? plan.buffer : 1;
  const versions = plan.until.epochs * Math.ceil(plan.epoch_leases / Math.max(1, devices));
  const apart = plan.apart || Math.max(1, Math.floor(plan.workers_min / Math.max(1, devices)));
  const most = Math.ceil(versions / apart);
  const participations = plan.participations ? Math.min(plan.participations, most) : most;
  return { epsilon: Number(private_[1]), delta: Number(private_[2] ?? DELTA), clip: plan.clip_update, participations, apart, versions };
}
function spentOf(privacy, counts) {
  const { participations, apart, versions } = privacy;
  const multiplier = toeplitzRatio(participations, apart, versions) / ratioFor(privacy);
  return ratioOfChains(counts, apart, versions) / multiplier;
}
function allows(privacy, counts) {
  return counts.reduce((sum, count) => sum + count, 0) <= privacy.participations && spentOf(privacy, counts) <= ratioFor(privacy) * (1 + ROUNDING);
}
function clipped(update, clip2) {
  const length = Math.sqrt(update.reduce((sum, value) => sum + value * value, 0));
  if (length <= clip2) return update;
  const share = Math.fround(clip2 / length * (1 - 1e-6));
  return update.map((value) => value * share);
}
function toeplitzRatio(participations, apart, versions) {
  const sizes = Object.keys(TABLE).map(Number).sort((a, b) => a - b);
  const size = sizes.find((each) => each >= versions);
  if (!size || !(versions >= 1)) throw new Error(`noise is known for 1 to ${sizes.at(-1)} versions, not ${versions}`);
  const { decays, weights } = TABLE[size];
  const column = Float64Array.from({ length: versions }, (_, j) => j ? weights.reduce((sum, weight, i) => sum + weight * decays[i] ** (j - 1), 0) : 1);
  const moved = new Float64Array(versions);
  for (let first = 0; first < Math.min(versions, participations * apart); first += apart) {
    for (let at = first; at < versions; at++) moved[at] += column[at - first];
  }
  return Math.sqrt(moved.reduce((sum, each) => sum + each * each, 0));
}
function ratioOfChains(counts, apart, versions) {
  return Math.sqrt(counts.reduce((sum, count) => sum + toeplitzRatio(count, apart, versions) ** 2, 0));
}
function deltaOf(ratio, epsilon) {
  const first = logNormal(ratio / 2 - epsilon / ratio), second = epsilon + logNormal(-ratio / 2 - epsilon / ratio);
  return Math.max(0, Math.exp(first) - Math.exp(Math.min(second, first)));
}
function ratioFor({ epsilon, delta }) {
  let low = 0, high = 1;
  while (deltaOf(high, epsilon) <= delta) [low, high] = [high, 2 * high];
  for (let i = 0; i < HALVINGS; i++) {
    const middle = (low + high) / 2;
    if (deltaOf(middle, epsilon) > delta) high = middle;
    else low = middle;
  }
  return low;
}
function epsilonOf({ delta }, ratio) {
  if (!(ratio > 0) || deltaOf(ratio, 0) <= delta) return 0;
  let low = 0, high = 1;
  while (deltaOf(ratio, high) > delta) {
    [low, high] = [high, 2 * high];
    if (high > EPSILON_MAX) return Infinity;
  }
  for (let i = 0; i < HALVINGS; i++) {
    const middle = (low + high) / 2;
    if (deltaOf(ratio, middle) > delta) low = middle;
    else high = middle;
  }
  return high;
}
function logNormal(value) {
  if (value > 0) return Math.log1p(-Math.exp(logNormal(-value)));
  const x = -value / Math.SQRT2;
  if (x < 2) {
    let term = x, sum = x;
    for (let n = 1; term > sum * 1e-17; n++) sum += term *= 2 * x * x / (2 * n + 1);
    return Math.log(0.5 - Math.exp(-x * x) * sum / Math.sqrt(Math.PI));
  }
  let fraction2 = x;
  for (let n = 200; n > 0; n--) fraction2 = x + n / 2 / fraction2;
  return -x * x - Math.log(2 * Math.sqrt(Math.PI) * fraction2);
}

// src/participation.ts
var Participation = class {
  constructor(privacy) {
    this.privacy = privacy;
  }
  privacy;
  /** [term, version] of every update that left. */
  taken = [];
  /** [term, lease] of the update that is being counted, and of the last one that was. */
  asked = "";
  counted = "";
  underWay = 0;
  restore(taken) {
    this.taken = [...taken];
  }
  /** Why the device must skip this version; null: it may take part. */
  refusal(work) {
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
  isCounted({ term, lease }) {
    return this.counted === `${term} ${lease}`;
  }
  /** Whether its participation has to be made durable now. */
  asks({ term, lease }) {
    if (this.asked === `${term} ${lease}`) return false;
    this.asked = `${term} ${lease}`;
    this.underWay += 1;
    return true;
  }
  onCounted({ term, version, lease }) {
    this.underWay = Math.max(0, this.underWay - 1);
    this.taken.push([term, version]);
    this.counted = `${term} ${lease}`;
    if (this.asked === this.counted) this.asked = "";
  }
  onNotCounted() {
    this.asked = "";
    this.underWay = Math.max(0, this.underWay - 1);
  }
  /** The state of the device with its account, so that the leader sends no lease that it would decline. */
  told(state, term) {
    const left = allows(this.privacy, this.counts(term)) ? this.privacy.participations - this.taken.length : 0;
    return {
      ...state,
      participations: this.taken.length,
      participations_left: Math.max(0, left),
      spent: spentOf(this.privacy, countsOf(this.taken)),
      spent_version: this.last(term)
    };
  }
  last(term) {
    const versions = this.taken.flatMap(([at, version]) => at === term ? [version] : []);
    return versions.length ? Math.max(...versions) : null;
  }
  /** The participations in each noise sequence, with one more in that of this term. */
  counts(term) {
    return countsOf([[term, 0], ...this.taken]);
  }
};
function countsOf(taken) {
  const counts = /* @__PURE__ */ new Map();
  for (const [term] of taken) counts.set(term, (counts.get(term) ?? 0) + 1);
  return [...counts.values()];
}

// src/privacy_ledger.ts
var PrivacyLedger = class _PrivacyLedger {
  constructor(source, job, privacy, taken_) {
    this.source = source;
    this.job = job;
    this.privacy = privacy;
    this.taken_ = taken_;
  }
  source;
  job;
  privacy;
  taken_;
  static async read(source, job, privacy) {
    try {
      const kept = JSON.parse(await source.recall(nameOf2(job)) ?? JSON.stringify({ job, participations: [] }));
      const isRight = (pair) => Array.isArray(pair) && pair.length === 2 && pair.every((each) => Number.isSafeInteger(each) && each >= 0);
      if (kept.job !== job || !kept.participations.every(isRight)) throw new Error("it is of another job, or has impossible numbers");
      return new _PrivacyLedger(source, job, privacy, kept.participations);
    } catch (error) {
      throw new Error(`the device's account of this private job cannot be read (${error.message}): it takes no part`);
    }
  }
  get taken() {
    return [...this.taken_];
  }
  /** Write down a participation. It is durable when this resolves. */
  async note(term, version) {
    const taken = [...this.taken_, [term, version]];
    const epsilon = epsilonOf(this.privacy, spentOf(this.privacy, countsOf(taken)));
    await this.source.keep(nameOf2(this.job), JSON.stringify({ job: this.job, participations: taken, epsilon, delta: this.privacy.delta }));
    this.taken_ = taken;
  }
};
function nameOf2(job) {
  return `privacy-${job}.json`;
}

// src/raw_columns.ts
var COLUMNS_MAX = 32;
var NAME_MAX_CHARS = 64;
var DIMENSIONS_MAX = 8;
var SIZE_MAX = 1 << 24;
var ROW_MAX_BYTES = 16 << 20;
var CLASSES_MAX = 1e3;
var CLASS_MAX_CHARS = 128;
var whole = (bits2, isSigned = true) => isSigned ? [-(1n << BigInt(bits2 - 1)), (1n << BigInt(bits2 - 1)) - 1n] : [0n, (1n << BigInt(bits2)) - 1n];
var DTYPES = {
  uint8: { stored: "U8", bytes: 1, make: (count) => new Uint8Array(count), range: whole(8, false) },
  int8: { stored: "I8", bytes: 1, make: (count) => new Int8Array(count), range: whole(8) },
  int16: { stored: "I16", bytes: 2, make: (count) => new Int16Array(count), range: whole(16) },
  int32: { stored: "I32", bytes: 4, make: (count) => new Int32Array(count), range: whole(32) },
  int64: { stored: "I64", bytes: 8, make: (count) => new BigInt64Array(count), range: whole(64) },
  float32: { stored: "F32", bytes: 4, make: (count) => new Float32Array(count), range: null },
  bool: { stored: "BOOL", bytes: 1, make: (count) => new Uint8Array(count), range: [0n, 1n] }
};
var sizeOf = (shape) => shape.reduce((product2, side) => product2 * side, 1);
function columnsFromPlain(plain) {
  if (plain === void 0) return [];
  if (!Array.isArray(plain) || plain.length > COLUMNS_MAX) throw wrong(`they are at most ${COLUMNS_MAX}`);
  const columns = plain.map(checked);
  if (new Set(columns.map(({ name }) => name)).size < columns.length) throw wrong("two columns have one name");
  if (columns.reduce((sum, { dtype, shape }) => sum + DTYPES[dtype].bytes * sizeOf(shape), 0) > ROW_MAX_BYTES) throw wrong(`a row has more than ${ROW_MAX_BYTES} bytes`);
  return columns;
}
function checked(plain) {
  const { name, dtype, shape, classes } = plain ?? {};
  if (!isName(name, NAME_MAX_CHARS)) throw wrong(`a name has 1 to ${NAME_MAX_CHARS} printable characters`);
  if (typeof dtype !== "string" || !Object.hasOwn(DTYPES, dtype)) throw wrong(`column ${name} has an unknown type`);
  const isSized = Array.isArray(shape) && shape.length <= DIMENSIONS_MAX && shape.every((size) => Number.isInteger(size) && size >= 1 && size <= SIZE_MAX);
  if (!isSized) throw wrong(`column ${name} has a shape beyond the limits`);
  if (!Array.isArray(classes) || classes.length > CLASSES_MAX || !classes.every((each) => isName(each, CLASS_MAX_CHARS))) throw wrong(`column ${name} has classes beyond the limits`);
  if (new Set(classes).size < classes.length || classes.length && (shape.length || !dtype.includes("int"))) throw wrong(`column ${name} cannot have these classes`);
  return { name, dtype, shape, classes };
}
function wrong(why) {
  return new Error(`these do not describe the columns of a device's rows: ${why}`);
}
function isName(text, most) {
  return typeof text === "string" && Array.from(text).length <= most && /^[^\p{C}\p{Zl}\p{Zp}\p{Zs}]+$/u.test(text.replaceAll(" ", "_"));
}
function described({ dtype, shape }) {
  return shape.length ? `${dtype} [${shape.join(", ")}]` : dtype;
}
function fitted(values, column) {
  checkForm(values, column);
  const { name, dtype, shape, classes } = column;
  const { stored, make, range } = DTYPES[dtype];
  const { data } = values;
  const made = make(data.length);
  for (let i = 0; i < data.length; i++) {
    if (values.dtype !== dtype && !isHeld(data[i], range, values.dtype)) throw new Error(`column ${name} has values of ${values.dtype} that ${dtype} cannot hold`);
    made[i] = dtype === "int64" ? BigInt(data[i]) : Number(data[i]);
    if (!range && !Number.isFinite(made[i])) throw new Error(`column ${name} has a value that is not a finite number`);
    if (classes.length && !(made[i] >= 0 && made[i] < classes.length)) throw new Error(`column ${name} has a value outside its ${classes.length} classes`);
  }
  return { type: stored, shape: [values.shape[0], ...shape], bytes: new Uint8Array(made.buffer) };
}
function isHeld(value, range, from) {
  if (!range) return from.startsWith("float") || BigInt(Math.fround(Number(value))) === BigInt(value);
  if (typeof value === "number" && !Number.isInteger(value)) return false;
  return value >= range[0] && value <= range[1];
}
function checkForm({ dtype, shape }, column) {
  const row = shape.slice(1);
  if (shape.length && row.join() === column.shape.join()) return;
  throw new Error(`column ${column.name} is ${described({ dtype, shape: row })}; the task declares ${described(column)}`);
}
function classOf(text, { name, classes }) {
  const known = classes.indexOf(text);
  if (known >= 0) return BigInt(known);
  if (/^-?\d{1,18}$/.test(text)) return BigInt(text);
  throw new Error(`column ${name} has a text that is not ${classes.length ? `one of its ${classes.length} classes` : "a whole number"}`);
}

// src/contract.ts
var TAGS = { "Hello": 2, "Welcome": 3, "Heartbeat": 4, "HeartbeatSeen": 5, "Leave": 6, "Assign": 7, "Dismiss": 8, "Ready": 10, "Work": 11, "Wait": 12, "Offer": 13, "Go": 14, "Update": 15, "Evaluated": 16, "Failed": 17, "UpdateRefused": 18, "Finished": 19, "Denied": 24, "Blob": 26 };
var FIELDS = {
  Assign: [
    [1, "job", "string", false, false],
    [2, "role", "string", false, false],
    [3, "term", "int", false, false],
    [4, "leader", "string", false, false],
    [5, "leader_endpoint", "string", false, false],
    [6, "spec", "JobSpec", false, true],
    [7, "reason", "string", false, false],
    [8, "card", "bytes", false, false]
  ],
  Blob: [
    [1, "sha256", "string", false, false],
    [2, "size_bytes", "int", false, false],
    [3, "takes_url", "bool", false, false],
    [4, "url", "string", false, false]
  ],
  Dataset: [
    [1, "manifest", "string", false, false],
    [2, "examples", "int", false, false]
  ],
  Denied: [
    [1, "reason", "string", false, false],
    [2, "endpoint", "string", false, false]
  ],
  DeviceState: [
    [1, "kind", "string", false, false],
    [2, "memory_total_mb", "double", false, true],
    [3, "memory_available_mb", "double", false, true],
    [4, "frequency_sum_mhz", "double", false, true],
    [5, "temperature_c", "double", false, true],
    [6, "load", "double", false, true],
    [7, "battery", "double", false, true],
    [8, "joules_per_cpu_s", "double", false, true],
    [9, "examples", "int", false, false],
    [10, "participations", "int", false, false],
    [11, "participations_left", "int", false, false],
    [12, "spent", "double", false, false],
    [13, "spent_version", "int", false, true],
    [14, "battery_joules", "double", false, true]
  ],
  Dismiss: [
    [1, "job", "string", false, false],
    [2, "reason", "string", false, false],
    [3, "endpoint", "string", false, false]
  ],
  Evaluated: [
    [1, "job", "string", false, false],
    [2, "term", "int", false, false],
    [3, "lease", "int", false, false],
    [4, "version", "int", false, false],
    [5, "examples", "int", false, false],
    [8, "metrics", "MetricSum", true, false]
  ],
  Facts: [
    [1, "host", "string", false, false],
    [2, "arch", "string", false, false],
    [3, "cpus", "int", false, false],
    [4, "memory_mb", "int", false, false],
    [5, "python", "string", false, false],
    [6, "torch", "string", false, false],
    [7, "shoal", "string", false, false],
    [8, "onnx", "string", false, false],
    [9, "browser", "string", false, false],
    [10, "is_hub", "bool", false, false],
    [11, "labels", "string", true, false]
  ],
  Failed: [
    [1, "job", "string", false, false],
    [2, "term", "int", false, false],
    [3, "lease", "int", false, false],
    [4, "reason", "string", false, false],
    [5, "traceback", "string", false, false],
    [6, "diverged", "bool", false, false]
  ],
  Finished: [
    [1, "job", "string", false, false],
    [2, "reason", "string", false, false]
  ],
  Go: [
    [1, "job", "string", false, false],
    [2, "term", "int", false, false],
    [3, "lease", "int", false, false],
    [4, "formation", "int", false, false]
  ],
  Goal: [
    [1, "metric", "string", false, false],
    [2, "at_least", "double", false, true],
    [3, "at_most", "double", false, true]
  ],
  Heartbeat: [
    [1, "seq", "int", false, false],
    [2, "load", "double", false, false],
    [3, "memory_free_mb", "int", false, false],
    [4, "link_bytes_per_s", "double", false, false],
    [5, "is_idle", "bool", false, false],
    [6, "is_same", "bool", false, false],
    [7, "preparing", "string", false, false]
  ],
  HeartbeatSeen: [
    [1, "seq", "int", false, false],
    [2, "next_s", "double", false, false]
  ],
  Hello: [
    [1, "node", "string", false, false],
    [2, "incarnation", "string", false, false],
    [3, "protocol", "int", false, false],
    [4, "facts", "Facts", false, true],
    [5, "leads", "Leads", true, false],
    [6, "lends", "bool", false, false],
    [7, "jobs", "string", true, false],
    [8, "is_referred", "bool", false, false]
  ],
  JobSpec: [
    [1, "job", "string", false, false],
    [2, "name", "string", false, false],
    [3, "entry", "string", false, false],
    [4, "kwargs_json", "string", false, false],
    [5, "bundle", "string", false, false],
    [6, "initial", "string", false, false],
    [7, "train", "Dataset", false, true],
    [8, "test", "Dataset", false, true],
    [9, "plan", "Plan", false, true],
    [10, "signature", "string", false, false],
    [11, "signer_pem", "string", false, false],
    [12, "base", "string", true, false],
    [13, "graphs", "string", false, false],
    [14, "card_signature", "string", false, false]
  ],
  Leads: [
    [1, "job", "string", false, false],
    [2, "term", "int", false, false],
    [3, "endpoint", "string", false, false]
  ],
  Leave: [
    [1, "reason", "string", false, false],
    [2, "come_s", "double", false, false]
  ],
  MetricSum: [
    [1, "name", "string", false, false],
    [2, "kind", "string", false, false],
    [3, "sums", "double", true, false],
    [4, "lower", "bool", false, false]
  ],
  Offer: [
    [1, "job", "string", false, false],
    [2, "term", "int", false, false],
    [3, "lease", "int", false, false],
    [4, "size_bytes", "int", false, false]
  ],
  Plan: [
    [1, "data", "string", false, false],
    [2, "topology", "string", false, false],
    [3, "pace", "string", false, false],
    [4, "codec", "string", false, false],
    [5, "work", "string", false, false],
    [6, "trust", "string", false, false],
    [7, "batch_size", "int", false, false],
    [8, "lease_batches", "int", false, false],
    [9, "learning_rate", "double", false, false],
    [10, "momentum", "double", false, false],
    [11, "weight_decay", "double", false, false],
    [12, "inner", "string", false, false],
    [13, "inner_state", "string", false, false],
    [14, "clip_gradient", "double", false, false],
    [15, "accumulate", "int", false, false],
    [16, "precision", "string", false, false],
    [17, "compile", "bool", false, false],
    [18, "workers_min", "int", false, false],
    [19, "workers_max", "int", false, false],
    [20, "until", "Until", false, true],
    [21, "evaluate_every_epochs", "int", false, false],
    [22, "seed", "int", false, false],
    [23, "lease_s", "double", false, false],
    [24, "checkpoint_every_s", "double", false, false],
    [25, "buffer", "int", false, false],
    [26, "staleness", "string", false, false],
    [27, "aggregators", "int", false, false],
    [28, "codec_down", "string", false, false],
    [29, "outer_rate", "double", false, false],
    [30, "nesterov", "bool", false, false],
    [31, "cohort", "int", false, false],
    [32, "shuffle", "string", false, false],
    [33, "cache_mb", "int", false, false],
    [34, "epoch_leases", "int", false, false],
    [35, "budget_s", "double", false, false],
    [36, "budget_joules", "double", false, false],
    [37, "refuse_smallest", "double", false, false],
    [38, "refuse_alike", "double", false, false],
    [39, "requests_per_s", "double", false, false],
    [40, "share_labels", "bool", false, false],
    [41, "labels_epsilon", "double", false, false],
    [42, "publish", "string", false, false],
    [43, "versions_kept", "int", false, false],
    [44, "judged_by", "string", false, false],
    [45, "outer", "string", false, false],
    [46, "outer_beta2", "double", false, false],
    [47, "outer_epsilon", "double", false, false],
    [48, "schedule", "string", false, false],
    [49, "worker_momentum", "double", false, true],
    [50, "clip_update", "double", false, false],
    [51, "participations", "int", false, false],
    [52, "apart", "int", false, false],
    [53, "clip_mean", "double", false, false],
    [54, "decay_skips", "string", false, false],
    [55, "ema", "double", false, false],
    [56, "budget_battery_percent", "double", false, false],
    [57, "where", "string", false, false],
    [58, "sampling", "string", false, false],
    [59, "weights", "string", false, false],
    [60, "accept_unusual", "bool", false, false],
    [61, "local_epochs", "int", false, false],
    [62, "algorithm", "string", false, false]
  ],
  Plateau: [
    [1, "metric", "string", false, false],
    [2, "patience", "int", false, false],
    [3, "min_change", "double", false, false]
  ],
  Ready: [
    [1, "job", "string", false, false],
    [2, "holds_term", "int", false, false],
    [3, "holds_version", "int", false, false],
    [4, "up_bytes_per_s", "double", false, false],
    [5, "down_bytes_per_s", "double", false, false],
    [6, "medium", "string", false, false],
    [7, "state", "DeviceState", false, true],
    [8, "is_hub", "bool", false, false]
  ],
  TensorInfo: [
    [1, "name", "string", false, false],
    [2, "dtype", "string", false, false],
    [3, "shape", "int", true, false]
  ],
  Until: [
    [1, "accuracy", "double", false, true],
    [2, "epochs", "int", false, true],
    [3, "seconds", "double", false, true],
    [4, "endless", "bool", false, false],
    [5, "goals", "Goal", true, false],
    [6, "plateaus", "Plateau", true, false]
  ],
  Update: [
    [1, "job", "string", false, false],
    [2, "term", "int", false, false],
    [3, "lease", "int", false, false],
    [4, "version", "int", false, false],
    [5, "examples", "int", false, false],
    [6, "loss_sum", "double", false, false],
    [7, "train_s", "double", false, false],
    [8, "formation", "int", false, false],
    [9, "fresh", "int", false, false],
    [12, "labels", "int", true, false],
    [13, "joules", "double", false, false],
    [14, "joules_measured", "bool", false, false],
    [15, "state", "DeviceState", false, true],
    [16, "fresh_metrics", "MetricSum", true, false],
    [17, "logged", "MetricSum", true, false],
    [18, "group", "int", false, false]
  ],
  UpdateRefused: [
    [1, "job", "string", false, false],
    [2, "term", "int", false, false],
    [3, "lease", "int", false, false],
    [4, "reason", "string", false, false],
    [5, "holds", "int", false, false],
    [6, "is_copy", "bool", false, false]
  ],
  Wait: [
    [1, "job", "string", false, false],
    [2, "reason", "string", false, false],
    [3, "retry_after_s", "double", false, false]
  ],
  Welcome: [
    [1, "heartbeat_s", "double", false, false],
    [2, "lost_after_s", "double", false, false],
    [3, "reason", "string", false, false],
    [4, "time_s", "double", false, false],
    [5, "redial_s", "double", false, false],
    [6, "come_s", "double", false, false],
    [7, "managers", "string", true, false]
  ],
  Work: [
    [1, "job", "string", false, false],
    [2, "term", "int", false, false],
    [3, "lease", "int", false, false],
    [4, "kind", "string", false, false],
    [5, "version", "int", false, false],
    [6, "durable_version", "int", false, false],
    [7, "epoch", "int", false, false],
    [8, "batches", "int", true, false],
    [9, "deadline_s", "double", false, false],
    [10, "credit", "bool", false, false],
    [11, "formation", "int", false, false],
    [12, "values_by", "int", false, false],
    [13, "base", "int", false, false],
    [14, "examples", "int", false, false],
    [15, "began", "int", false, false],
    [16, "rate", "double", false, false]
  ]
};

// src/protobuf.ts
var Violation = class extends Error {
};
var UTF8 = new TextEncoder();
var TEXT = new TextDecoder("utf-8", { fatal: true });
var VARINT = 0;
var FIXED64 = 1;
var BYTES = 2;
var FIXED32 = 5;
var Writer = class {
  parts = [];
  size = 0;
  raw(bytes) {
    this.parts.push(bytes);
    this.size += bytes.length;
  }
  varint(value) {
    const out = [];
    let left = BigInt.asUintN(64, BigInt(value));
    while (left > 0x7fn) {
      out.push(Number(left & 0x7fn) | 128);
      left >>= 7n;
    }
    out.push(Number(left));
    this.raw(Uint8Array.from(out));
  }
  field(number2, bytes) {
    this.varint(number2 << 3 | BYTES);
    this.varint(bytes.length);
    this.raw(bytes);
  }
  done() {
    const whole3 = new Uint8Array(this.size);
    let at = 0;
    for (const part2 of this.parts) {
      whole3.set(part2, at);
      at += part2.length;
    }
    return whole3;
  }
};
function encode(name, message) {
  const out = new Writer();
  for (const [number2, key, kind, isRepeated, tellsAbsent] of FIELDS[name]) {
    const value = message[key];
    if (value === void 0 || value === null) continue;
    if (isRepeated) writeAll(out, number2, kind, value);
    else writeOne(out, number2, kind, value, tellsAbsent);
  }
  return out.done();
}
function writeAll(out, number2, kind, values) {
  if (kind === "int" || kind === "bool" || kind === "double") {
    if (!values.length) return;
    const packed2 = new Writer();
    for (const value of values) scalar(packed2, kind, value);
    out.field(number2, packed2.done());
    return;
  }
  for (const value of values) writeOne(out, number2, kind, value, true);
}
function scalar(out, kind, value) {
  if (kind === "double") {
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setFloat64(0, value, true);
    out.raw(bytes);
  } else out.varint(kind === "bool" ? Number(value) : value);
}
function writeOne(out, number2, kind, value, always) {
  switch (kind) {
    case "string":
    case "bytes": {
      const bytes = kind === "string" ? UTF8.encode(value) : value;
      if (bytes.length || always) out.field(number2, bytes);
      return;
    }
    case "int":
    case "bool":
    case "double":
      if (!always && !value && !Object.is(value, -0)) return;
      out.varint(number2 << 3 | (kind === "double" ? FIXED64 : VARINT));
      scalar(out, kind, value);
      return;
    default:
      out.field(number2, encode(kind, value));
  }
}
var Reader = class {
  constructor(bytes, at = 0, end = bytes.length) {
    this.bytes = bytes;
    this.at = at;
    this.end = end;
  }
  bytes;
  at;
  end;
  varint() {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (this.at >= this.end) throw new Violation("a message that is cut off");
      const byte = this.bytes[this.at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return BigInt.asUintN(64, value);
    }
    throw new Violation("a number that does not end");
  }
  take(size) {
    if (size > this.end - this.at) throw new Violation("a message that is cut off");
    const taken = this.bytes.subarray(this.at, this.at + size);
    this.at += size;
    return taken;
  }
  length() {
    const size = this.varint();
    if (size > BigInt(this.end - this.at)) throw new Violation("a message that is cut off");
    return Number(size);
  }
};
function decode(name, bytes) {
  const fields2 = new Map(FIELDS[name].map((field) => [field[0], field]));
  const message = {};
  for (const [, key, kind, isRepeated, tellsAbsent] of FIELDS[name]) message[key] = empty(kind, isRepeated, tellsAbsent);
  const reader = new Reader(bytes);
  while (reader.at < reader.end) {
    const tag = Number(reader.varint());
    const field = fields2.get(tag >>> 3);
    if (field) read(reader, tag & 7, field, message);
    else skip(reader, tag & 7);
  }
  return message;
}
function empty(kind, isRepeated, tellsAbsent) {
  if (isRepeated) return [];
  if (tellsAbsent) return null;
  return kind === "string" ? "" : kind === "bytes" ? new Uint8Array() : kind === "bool" ? false : 0;
}
function read(reader, wire, [, key, kind, isRepeated], into) {
  const isNumber = kind === "int" || kind === "bool" || kind === "double";
  if (isNumber && isRepeated && wire === BYTES) {
    const packed2 = new Reader(reader.take(reader.length()));
    while (packed2.at < packed2.end) into[key].push(number(packed2, kind));
    return;
  }
  const wanted = kind === "double" ? FIXED64 : isNumber ? VARINT : BYTES;
  if (wire !== wanted) throw new Violation(`a field ${key} that is written otherwise than the contract says`);
  const value = isNumber ? number(reader, kind) : bytesOf(reader, kind);
  if (isRepeated) into[key].push(value);
  else into[key] = value;
}
function bytesOf(reader, kind) {
  const bytes = reader.take(reader.length());
  if (kind === "bytes") return bytes.slice();
  return kind === "string" ? TEXT.decode(bytes) : decode(kind, bytes);
}
function number(reader, kind) {
  if (kind === "double") {
    const raw = reader.take(8);
    return new DataView(raw.buffer, raw.byteOffset, 8).getFloat64(0, true);
  }
  const value = reader.varint();
  if (kind === "bool") return value !== 0n;
  const signed2 = BigInt.asIntN(64, value);
  const plain = Number(signed2);
  return Number.isSafeInteger(plain) ? plain : signed2;
}
function skip(reader, wire) {
  if (wire === VARINT) reader.varint();
  else if (wire === FIXED64) reader.take(8);
  else if (wire === FIXED32) reader.take(4);
  else if (wire === BYTES) reader.take(reader.length());
  else throw new Violation("a field of a kind that protobuf does not have");
}

// src/frames.ts
var CHUNK_BYTES = 1 << 20;
var ENVELOPE_MAX_BYTES = 256 << 10;
var PAYLOAD_MAX_BYTES = 256 << 20;
var NAMES = new Map(Object.entries(TAGS).map(([name, tag]) => [tag, name]));
function* frames(kind, body, tensors = {}) {
  const envelope = new Writer();
  for (const [name, values] of Object.entries(tensors)) {
    envelope.field(1, encode("TensorInfo", { name, dtype: "float32", shape: [values.length] }));
  }
  envelope.field(TAGS[kind], encode(kind, body));
  const payload = joined(Object.values(tensors));
  const head = new Writer();
  head.field(1, envelope.done());
  const odd = payload.length % CHUNK_BYTES || Math.min(CHUNK_BYTES, payload.length);
  if (payload.length) head.field(2, payload.subarray(0, odd));
  yield head.done();
  for (let at = odd; at < payload.length; at += CHUNK_BYTES) {
    const chunk = new Writer();
    chunk.field(2, payload.subarray(at, at + CHUNK_BYTES));
    yield chunk.done();
  }
}
function joined(arrays) {
  const whole3 = new Uint8Array(arrays.reduce((sum, array) => sum + array.byteLength, 0));
  let at = 0;
  for (const array of arrays) {
    whole3.set(new Uint8Array(array.buffer, array.byteOffset, array.byteLength), at);
    at += array.byteLength;
  }
  return whole3;
}
var Assembly = class {
  waiting = null;
  /** The message that this frame completes; null: more is to come. */
  take(frame) {
    const { envelope, chunk } = parts(frame);
    if (envelope) {
      if (this.waiting) throw new Violation("a message where a chunk was expected");
      const { kind, body, infos } = opened(envelope);
      const size = infos.reduce((sum, info) => sum + sizeOf2(info), 0);
      if (size > PAYLOAD_MAX_BYTES) throw new Violation(`${kind} of ${size} bytes, at most ${PAYLOAD_MAX_BYTES} are taken`);
      if (!size && chunk) throw new Violation(`a chunk with ${kind}, which announced no tensors`);
      this.waiting = { kind, body, infos, into: new Uint8Array(size), filled: 0 };
    } else if (!this.waiting || !chunk) throw new Violation("a chunk where a message was expected");
    const waiting = this.waiting;
    if (chunk) {
      const left = waiting.into.length - waiting.filled;
      const due = left % CHUNK_BYTES || CHUNK_BYTES;
      if (!left || chunk.length !== due) throw new Violation(`a chunk of ${chunk.length} bytes where ${due} were announced`);
      waiting.into.set(chunk, waiting.filled);
      waiting.filled += chunk.length;
    }
    if (waiting.filled < waiting.into.length) return null;
    this.waiting = null;
    const tensors = {};
    let at = 0;
    for (const info of waiting.infos) {
      const size = sizeOf2(info);
      tensors[info.name] = new Float32Array(waiting.into.buffer.slice(at, at + size));
      at += size;
    }
    return { kind: waiting.kind, body: waiting.body, tensors };
  }
};
function chunkOf(frame) {
  const { envelope, chunk } = parts(frame);
  if (envelope || !chunk) throw new Violation("a message where a chunk was expected");
  return chunk;
}
function parts(frame) {
  const reader = new Reader(frame);
  const found = [null, null];
  for (const number2 of [1, 2]) {
    if (reader.at < reader.end && frame[reader.at] === (number2 << 3 | 2)) {
      reader.at += 1;
      const size = reader.length();
      if (size > (number2 === 1 ? ENVELOPE_MAX_BYTES : CHUNK_BYTES)) throw new Violation(`a field of ${size} bytes`);
      found[number2 - 1] = reader.take(size);
    }
  }
  if (reader.at !== reader.end) throw new Violation("a frame that holds neither an envelope nor a chunk, or more");
  return { envelope: found[0], chunk: found[1] };
}
function opened(envelope) {
  const reader = new Reader(envelope);
  const infos = [];
  let found = null;
  while (reader.at < reader.end) {
    const tag = Number(reader.varint());
    if ((tag & 7) !== 2) throw new Violation("an envelope that is none");
    const bytes = reader.take(reader.length());
    if (tag >>> 3 === 1) infos.push(decode("TensorInfo", bytes));
    else {
      const kind = NAMES.get(tag >>> 3);
      found = kind ? { kind, body: decode(kind, bytes) } : { kind: "", body: {} };
    }
  }
  if (!found) throw new Violation("an envelope with no message");
  return { ...found, infos };
}
function sizeOf2(info) {
  if (info.dtype !== "float32") throw new Violation(`a tensor of type ${info.dtype}: a tab takes float32`);
  const size = info.shape.reduce((product2, side) => product2 * side, 4);
  if (!(size >= 0 && Number.isSafeInteger(size))) throw new Violation("a tensor with an impossible shape");
  return size;
}

// src/session.ts
var OPEN_S = 20;
var OPEN = 1;
var BLOB_MAX_BYTES = 1 << 30;
async function open(door, identity, verb, incarnation, listening) {
  const socket = door.socket("/door");
  socket.binaryType = "arraybuffer";
  return new Promise((resolve, reject) => {
    let isOpen = false;
    const giveUp = setTimeout(() => socket.close(), OPEN_S * 1e3);
    socket.onmessage = async ({ data }) => {
      try {
        if (isOpen) listening.frame(new Uint8Array(data));
        else if ("challenge" in JSON.parse(data)) socket.send(await answer(door, identity, JSON.parse(data), verb, incarnation));
        else {
          isOpen = true;
          clearTimeout(giveUp);
          resolve(socket);
        }
      } catch (error) {
        socket.close(4e3, String(error).slice(0, 100));
        reject(error);
      }
    };
    socket.onclose = ({ code, reason }) => {
      clearTimeout(giveUp);
      if (isOpen) listening.closed(code, reason);
      else reject(code === 4403 ? new RefusedHere(reason) : new Error(say("why.unreachable")));
    };
  });
}
var Lane = class _Lane {
  constructor(socket) {
    this.socket = socket;
  }
  socket;
  static async open(door, identity, verb, incarnation, on) {
    const assembly = new Assembly();
    const socket = await open(door, identity, verb, incarnation, {
      frame: (frame) => {
        const message = assembly.take(frame);
        if (message) on.message(message);
      },
      closed: on.closed
    });
    return new _Lane(socket);
  }
  send(kind, body, tensors = {}) {
    let sent = 0;
    if (this.socket.readyState !== OPEN) return sent;
    for (const frame of frames(kind, body, tensors)) {
      this.socket.send(frame);
      sent += frame.length;
    }
    return sent;
  }
  close() {
    this.socket.onclose = null;
    this.socket.close();
  }
};
var Blobs = class {
  constructor(door, identity, incarnation, kept, came) {
    this.door = door;
    this.identity = identity;
    this.incarnation = incarnation;
    this.kept = kept;
    this.came = came;
  }
  door;
  identity;
  incarnation;
  kept;
  came;
  socket = null;
  due = null;
  last = Promise.resolve();
  /** Waits for the ones before it. */
  fetch(sha256) {
    const mine = this.last.then(() => this.fetchNow(sha256));
    this.last = mine.catch(() => void 0);
    return mine;
  }
  close() {
    this.socket?.then((socket) => socket.close(), () => void 0);
    this.socket = null;
  }
  async fetchNow(sha256) {
    const known = await this.kept.get(sha256);
    if (known && await hashOf(known) === sha256) return known;
    if (known) await this.kept.drop(sha256);
    const whole3 = await this.download(sha256);
    const found = await hashOf(whole3);
    if (found !== sha256) throw new Error(`a blob that is not what its hash says: ${found.slice(0, 12)}…`);
    await this.kept.put(sha256, whole3);
    return whole3;
  }
  async download(sha256) {
    this.socket ??= open(this.door, this.identity, "Fetch", this.incarnation, {
      frame: (frame) => this.due?.take(frame),
      closed: (_, reason) => {
        this.socket = null;
        this.due?.fail(reason || "connection closed");
      }
    });
    let socket;
    try {
      socket = await this.socket;
    } catch (error) {
      this.socket = null;
      throw error;
    }
    return new Promise((resolve, reject) => {
      let into = null;
      let filled = 0;
      const take = (frame) => {
        this.came(frame.length);
        if (!into) {
          const head = new Assembly().take(frame);
          if (head?.kind === "Denied") return reject(new Error(head.body.reason));
          const size = head?.body.size_bytes;
          if (head?.kind !== "Blob" || head.body.sha256 !== sha256) return reject(new Error("another blob than was asked for"));
          if (!(size <= BLOB_MAX_BYTES)) return reject(new Error(`a blob of ${size} bytes: a tab takes up to ${BLOB_MAX_BYTES}`));
          into = new Uint8Array(size);
        } else {
          const chunk = chunkOf(frame);
          if (filled + chunk.length > into.length) return reject(new Error("a blob that is longer than it said"));
          into.set(chunk, filled);
          filled += chunk.length;
        }
        if (filled === into.length) resolve(into);
      };
      this.due = { take, fail: (reason) => reject(new Error(reason)) };
      for (const frame of frames("Blob", { sha256, size_bytes: 0 })) socket.send(frame);
    }).finally(() => this.due = null);
  }
};
async function hashOf(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

// src/batches.ts
var GAMMA = 0x9e3779b97f4a7c15n;
var MASK = 0xffffffffffffffffn;
function splitmix64(state) {
  return finish(state + GAMMA & MASK);
}
function finish(z) {
  z = (z ^ z >> 30n) * 0xbf58476d1ce4e5b9n & MASK;
  z = (z ^ z >> 27n) * 0x94d049bb133111ebn & MASK;
  return z ^ z >> 31n;
}
function mix(...numbers) {
  return numbers.reduce((folded, each) => splitmix64(folded ^ BigInt(each) & MASK), 0n);
}
function epochOrder(count, seed, epoch) {
  const base = mix(seed, epoch);
  const keys = new BigUint64Array(count);
  let state = base;
  for (let i = 0; i < count; i++) {
    state = state + GAMMA & MASK;
    keys[i] = finish(state);
  }
  return sortedPlaces(keys);
}
var WINDOW_SHARDS = 8;
function windowShards(cacheBytes, shardBytes) {
  if (!cacheBytes) return WINDOW_SHARDS;
  return Math.max(1, Math.min(WINDOW_SHARDS, Math.floor(cacheBytes / (2 * Math.max(1, shardBytes)))));
}
var WindowShuffle = class {
  constructor(rows, seed, window) {
    this.rows = rows;
    this.seed = seed;
    this.window = window;
    for (const count of rows) this.starts.push(this.starts.at(-1) + count);
  }
  rows;
  seed;
  window;
  starts = [0];
  epoch = null;
  shuffled = null;
  /** The examples at positions `start` to `stop` (exclusive) of an epoch. */
  indices(epoch, start, stop) {
    const { order, ends } = this.windows(epoch);
    const found = [];
    for (const [number2, end] of ends.entries()) {
      const begin = number2 ? ends[number2 - 1] : 0;
      if (end <= start || begin >= stop) continue;
      found.push(...this.rowsOf(epoch, number2, order).subarray(Math.max(0, start - begin), stop - begin));
    }
    return Uint32Array.from(found);
  }
  windows(epoch) {
    if (this.epoch?.epoch !== epoch) {
      const order = epochOrder(this.rows.length, mix(this.seed, 0), epoch);
      const ends = [];
      let rows = 0;
      for (const [i, shard] of order.entries()) {
        rows += this.rows[shard];
        if ((i + 1) % this.window === 0 || i === order.length - 1) ends.push(rows);
      }
      this.epoch = { epoch, order, ends };
    }
    return this.epoch;
  }
  rowsOf(epoch, number2, order) {
    if (this.shuffled?.epoch !== epoch || this.shuffled.window !== number2) {
      const rows = [];
      for (const shard of order.subarray(number2 * this.window, (number2 + 1) * this.window)) {
        for (let row = this.starts[shard]; row < this.starts[shard + 1]; row++) rows.push(row);
      }
      const shuffled = epochOrder(rows.length, mix(this.seed, 1 + number2), epoch).map((place) => rows[place]);
      this.shuffled = { epoch, window: number2, rows: shuffled };
    }
    return this.shuffled.rows;
  }
};
function sortedPlaces(keys) {
  const places = new Uint32Array(keys.length).map((_, i) => i);
  return places.sort((a, b) => keys[a] < keys[b] ? -1 : keys[a] > keys[b] ? 1 : a - b);
}
function drawAll(draws, examples2, seed) {
  return Object.fromEntries(draws.map((draw, i) => [draw.name, drawn(draw, examples2, seed + 2n * BigInt(i))]));
}
function drawn(draw, examples2, seed) {
  const dims = draw.shape.map(([each, more]) => each * examples2 + more);
  const count = dims.reduce((product2, side) => product2 * side, 1);
  if (draw.kind === "uniform") return { type: "float32", data: Float32Array.from(uniform(count, seed)), dims };
  if (draw.kind === "normal") {
    const [first, second] = [uniform(count, seed), uniform(count, seed ^ 1n)];
    const made = Float32Array.from(first, (u, i) => Math.sqrt(-2 * Math.log1p(-u)) * Math.cos(2 * Math.PI * second[i]));
    return { type: "float32", data: made, dims };
  }
  if (draw.kind === "integers") {
    const spread = uniform(count, seed);
    const whole3 = BigInt64Array.from(
      spread,
      (u) => BigInt(draw.low + Math.trunc(u * (draw.high - draw.low)))
    );
    return { type: "int64", data: whole3, dims };
  }
  return { type: "int64", data: BigInt64Array.from([...sortedPlaces(bits(count, seed))].map(BigInt)), dims };
}
function bits(count, seed) {
  let z = BigInt.asUintN(64, seed) * 0xd1342543de82ef95n & MASK;
  return new BigUint64Array(count).map(() => {
    z = z + GAMMA & MASK;
    return finish(z);
  });
}
function uniform(count, seed) {
  return Float64Array.from(bits(count, seed), (z) => Number(z >> 40n) / (1 << 24));
}

// src/safetensors.ts
var HEADER_MAX_BYTES = 4 << 20;
var ITEM_BYTES = {
  BOOL: 1,
  U8: 1,
  I8: 1,
  U16: 2,
  I16: 2,
  F16: 2,
  BF16: 2,
  U32: 4,
  I32: 4,
  F32: 4,
  U64: 8,
  I64: 8,
  F64: 8
};
function readTensors(file) {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = file.byteLength < 8 ? Infinity : Number(view.getBigUint64(0, true));
  if (length > HEADER_MAX_BYTES || length > file.byteLength - 8) throw new Error("not a safetensors file");
  const header = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(file.subarray(8, 8 + length)));
  const { __metadata__: notes = {}, ...entries } = header;
  const tensors = /* @__PURE__ */ new Map();
  for (const [name, entry] of Object.entries(entries)) {
    const [begin, end] = entry.data_offsets;
    const size = entry.shape.reduce((product2, side) => product2 * side, ITEM_BYTES[entry.dtype] ?? NaN);
    if (!(begin >= 0 && end - begin === size && 8 + length + end <= file.byteLength)) {
      throw new Error(`a safetensors file whose tensor ${name} does not fit`);
    }
    tensors.set(name, { dtype: entry.dtype, shape: entry.shape, bytes: file.subarray(8 + length + begin, 8 + length + end) });
  }
  return { tensors, notes };
}
function asFloats(stored) {
  const raw = stored.bytes.slice().buffer;
  switch (stored.dtype) {
    case "F32":
      return new Float32Array(raw);
    case "F64":
      return Float32Array.from(new Float64Array(raw));
    case "I64":
      return Float32Array.from(new BigInt64Array(raw), Number);
    case "I32":
      return Float32Array.from(new Int32Array(raw));
    case "U8":
    case "BOOL":
      return Float32Array.from(new Uint8Array(raw));
    default:
      throw new Error(`a model with values of type ${stored.dtype}, which a tab does not read`);
  }
}

// src/examples.ts
var Examples = class {
  /** `window`: how many shards are shuffled together, and twice as many stay in memory; 0: all of them. */
  constructor(entries, fetch2, window = 0) {
    this.fetch = fetch2;
    this.window = window;
    let first = 0;
    for (const entry of entries) {
      this.shards.push({ ...entry, first, columns: null });
      first += entry.examples;
    }
    this.count = first;
  }
  fetch;
  window;
  shards = [];
  count;
  get rows() {
    return this.shards.map(({ examples: examples2 }) => examples2);
  }
  /** Bring every shard here: a batch of a set that is shuffled as a whole is in all of them. */
  async fetchAll() {
    for (const number2 of this.shards.keys()) await this.open(number2);
  }
  async take(numbers) {
    const homes = Array.from(numbers, (number2) => this.shardOf(number2));
    const needed = [...new Set(homes)];
    for (const shard of needed) await this.open(shard);
    const found = {};
    for (const [name, { dtype, shape, bytes: all }] of this.shards[needed[0] ?? 0].columns) {
      const rowBytes = all.length / shape[0];
      const bytes = new Uint8Array(rowBytes * numbers.length);
      for (let i = 0; i < numbers.length; i++) {
        const { first, columns } = this.shards[homes[i]];
        const at = (numbers[i] - first) * rowBytes;
        bytes.set(columns.get(name).bytes.subarray(at, at + rowBytes), i * rowBytes);
      }
      found[name] = { type: dtype, shape: [numbers.length, ...shape.slice(1)], bytes };
    }
    this.shut(new Set(needed));
    return found;
  }
  async open(number2) {
    const shard = this.shards[number2];
    if (shard.columns) return;
    const { tensors, notes } = readTensors(await this.fetch(shard.sha256));
    if (notes.columns && Object.keys(JSON.parse(notes.columns)).length) throw new Error("columns of text or of unequal rows, which no graph takes");
    for (const { shape } of tensors.values()) {
      if (shape[0] !== shard.examples) throw new Error(`a shard of ${shape[0]} examples where the job says ${shard.examples}`);
    }
    shard.columns = tensors;
  }
  /** Let go of shards beyond those that may stay, except these. */
  shut(needed) {
    if (!this.window) return;
    const open3 = this.shards.flatMap(({ columns }, i) => columns && !needed.has(i) ? [i] : []);
    for (const i of open3.slice(0, Math.max(0, open3.length + needed.size - 2 * this.window))) this.shards[i].columns = null;
  }
  shardOf(number2) {
    let low = 0, high = this.shards.length - 1;
    while (low < high) {
      const middle = low + high + 1 >> 1;
      if (this.shards[middle].first <= number2) low = middle;
      else high = middle - 1;
    }
    return low;
  }
};

// src/first_model.ts
var OWN_MAX_BYTES = 16 << 20;
function firstModel(file) {
  const { tensors, notes } = readTensors(file);
  const layout = JSON.parse(notes.layout);
  const { values, parameters } = sizesOf(layout);
  const first = new Float32Array(values);
  let at = 0;
  for (const [name, shape] of layout) {
    first.set(asFloats(tensors.get(name)), at);
    at += product(shape);
  }
  return { first, parameters, own: "own" in notes ? ownLayout(notes.own) : null };
}
function ownLayout(text) {
  const sizes = sizesOf(JSON.parse(text)), bytes = sizes.values * Float32Array.BYTES_PER_ELEMENT;
  if (bytes > OWN_MAX_BYTES) throw new Error(`a part of this model is each device's own: ${bytes} bytes, and this device keeps at most ${OWN_MAX_BYTES}`);
  return { text, ...sizes };
}
function sizesOf(layout) {
  const size = (rows) => rows.reduce((sum, [, shape]) => sum + product(shape), 0);
  return { values: size(layout), parameters: size(layout.filter(([, , kind]) => kind === "parameter")) };
}
function product(shape) {
  return shape.reduce((size, side) => size * side, 1);
}

// src/graph_rules.ts
var OPSET = 18;
var IR_VERSION = 9;
var GRAPH_MAX_BYTES = 4194304;
var FILE_MAX_BYTES = 67108864;
var NODES_MAX = 2e4;
var NODE_NAMES_MAX = 1e4;
var LOOP = "Scan";
var OPERATIONS = /* @__PURE__ */ new Set([
  "Abs",
  "Add",
  "And",
  "ArgMax",
  "ArgMin",
  "Atan",
  "AveragePool",
  "Cast",
  "Ceil",
  "Concat",
  "Conv",
  "ConvTranspose",
  "Cos",
  "Cosh",
  "CumSum",
  "Div",
  "Equal",
  "Erf",
  "Exp",
  "Expand",
  "Floor",
  "Gather",
  "GatherElements",
  "GatherND",
  "Gemm",
  "Greater",
  "GreaterOrEqual",
  "Identity",
  "IsInf",
  "IsNaN",
  "Less",
  "LessOrEqual",
  "Log",
  "MatMul",
  "Max",
  "MaxPool",
  "Min",
  "Mod",
  "Mul",
  "Neg",
  "Not",
  "Or",
  "Pad",
  "Pow",
  "Range",
  "Reciprocal",
  "ReduceMax",
  "ReduceMean",
  "ReduceMin",
  "ReduceProd",
  "ReduceSum",
  "Relu",
  "Reshape",
  "Round",
  "Scan",
  "ScatterElements",
  "ScatterND",
  "Shape",
  "Sigmoid",
  "Sign",
  "Sin",
  "Sinh",
  "Slice",
  "Split",
  "Sqrt",
  "Squeeze",
  "Sub",
  "Tan",
  "Tanh",
  "Tile",
  "TopK",
  "Transpose",
  "Unsqueeze",
  "Where",
  "Xor"
]);
var GRAPH_FIELDS = {
  model: { "ir_version": 1, "producer_name": 2, "graph": 7, "opset": 8 },
  opset: { "domain": 1, "version": 2 },
  graph: { "node": 1, "name": 2, "initializer": 5, "input": 11, "output": 12 },
  node: { "input": 1, "output": 2, "name": 3, "kind": 4, "attribute": 5 },
  attribute: { "name": 1, "f": 2, "i": 3, "s": 4, "floats": 7, "graph": 6, "ints": 8, "type": 20 },
  constant: { "dims": 1, "type": 2, "floats": 4, "int32s": 5, "int64s": 7, "name": 8, "raw": 9, "doubles": 10 }
};

// src/graph.ts
var VARINT2 = 0;
var FIXED642 = 1;
var BYTES2 = 2;
var FIXED322 = 5;
var KIND_CHARS = 40;
var KIND = new TextDecoder("utf-8", { ignoreBOM: true });
var { model: MODEL, opset: SET, graph: GRAPH, node: NODE, attribute: ATTRIBUTE } = GRAPH_FIELDS;
function checkGraph(graph) {
  if (graph.length > GRAPH_MAX_BYTES) throw new Error(`a graph has ${graph.length} bytes, at most ${GRAPH_MAX_BYTES}`);
  const bodies = [];
  const sets = [];
  for (const [field, value] of fields(graph, "model")) {
    if (field === MODEL.ir_version && value !== BigInt(IR_VERSION)) throw new Error(`a graph of another format than ${IR_VERSION}`);
    if (field === MODEL.graph) bodies.push(part(value));
    else if (field === MODEL.opset) {
      const set = { domain: new Uint8Array(), version: 0n };
      for (const [key, each] of fields(part(value), "opset")) set[key === SET.domain ? "domain" : "version"] = each;
      sets.push(set);
    }
  }
  if (bodies.length !== 1 || sets.length !== 1) throw new Error("a graph file holds one graph and one set of operations");
  if (part(sets[0].domain).length || sets[0].version !== BigInt(OPSET)) throw new Error(`a graph has operations of ONNX's own set ${OPSET} alone`);
  return checkBody(bodies[0], LOOP);
}
function checkBody(body, loop) {
  let nodes = 0;
  for (const [field, value] of fields(body, "graph")) {
    if (field === GRAPH.node) {
      nodes += 1 + checkNode(part(value), loop);
      if (nodes > NODES_MAX) throw new Error(`a graph has more than ${NODES_MAX} nodes`);
    } else if (field === GRAPH.initializer) readAll(part(value), "constant");
  }
  return nodes;
}
function checkNode(node, loop) {
  let kind = "", names = 0;
  const steps = [];
  for (const [field, value] of fields(node, "node")) {
    if (field === NODE.kind) kind = KIND.decode(part(value).subarray(0, KIND_CHARS));
    else if (field === NODE.input || field === NODE.output) names += 1;
    else if (field === NODE.attribute) {
      for (const [key, inside] of fields(part(value), "attribute")) if (key === ATTRIBUTE.graph) steps.push(part(inside));
    }
  }
  if (!OPERATIONS.has(kind)) throw new Error(`a graph has the operation ${JSON.stringify(kind)}, which is not among those that devices run`);
  if (names > NODE_NAMES_MAX) throw new Error(`a node of a graph reads and gives more than ${NODE_NAMES_MAX} values`);
  if (steps.length !== Number(kind === LOOP) || steps.length && kind !== loop) throw new Error(`${kind} has ${steps.length} graphs: a graph has loops of one step, and a step has no loops`);
  return steps.reduce((sum, step) => sum + checkBody(step, ""), 0);
}
function readAll(bytes, what) {
  for (const _ of fields(bytes, what)) ;
}
function part(value) {
  if (typeof value === "bigint") throw new Error("a graph has a number where a part of it is due");
  return value;
}
function* fields(data, what) {
  const known = new Set(Object.values(GRAPH_FIELDS[what]));
  let at = 0;
  const varint = () => {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (at >= data.length) throw new Error("a graph ends early");
      const byte = data[at++];
      value |= BigInt(byte & 127) << shift;
      if (byte < 128) return value;
    }
    throw new Error("a graph has a number that does not end");
  };
  while (at < data.length) {
    const key = varint();
    const field = Number(key >> 3n), kind = Number(key & 7n);
    if (!known.has(field)) throw new Error(`the ${what} of a graph has field ${field}, which is none of ours`);
    if (kind === VARINT2) {
      yield [field, varint()];
      continue;
    }
    if (kind !== BYTES2 && kind !== FIXED322 && kind !== FIXED642) throw new Error("a graph is not what protobuf writes");
    const length = kind === BYTES2 ? varint() : kind === FIXED322 ? 4n : 8n;
    if (length > BigInt(data.length - at)) throw new Error("a graph ends early");
    yield [field, data.subarray(at, at + Number(length))];
    at += Number(length);
  }
}

// src/own_lease.ts
var JUDGED_BATCHES = 8;
var LABELS_MAX = 4096;
var LABELS = ["y", "label", "labels"];
function chooseRows(plan, held, seen, epoch, lease, examples2) {
  const since = Math.min(seen, held);
  const newest = Uint32Array.from({ length: Math.min(examples2, held - since) }, (_, i) => held - 1 - i);
  const chosen = new Uint32Array(Math.min(examples2, held));
  chosen.set(newest);
  let filled = newest.length;
  const taken = held - newest.length;
  if (filled < chosen.length) {
    for (const row of epochOrder(held, mix(plan.seed, epoch), lease)) {
      if (row >= taken) continue;
      chosen[filled++] = row;
      if (filled === chosen.length) break;
    }
  }
  const passes = Array.from({ length: plan.passes }, (_, pass) => {
    const order = pass ? epochOrder(chosen.length, mix(plan.seed, epoch, lease), pass).map((place) => chosen[place]) : chosen;
    return spans(order, plan.batch_size);
  });
  return { judged: spans(newest, JUDGED_BATCHES * plan.batch_size), examples: chosen.length, parts: passes.flat(), first_pass: passes[0].length };
}
function spans(rows, size) {
  return Array.from({ length: Math.ceil(rows.length / size) }, (_, i) => rows.subarray(i * size, (i + 1) * size));
}
function withLabels(counts, rows) {
  const name = LABELS.find((each) => each in rows && rows[each].shape.length === 1 && /^[IU]/.test(rows[each].type));
  if (!name) return counts;
  const labels = wholes(rows[name].type, rows[name].bytes);
  if (!labels.every((label) => label >= 0 && label < LABELS_MAX)) return counts;
  const length = labels.reduce((most, label) => Math.max(most, label + 1), counts.length);
  const more = Array.from({ length }, (_, i) => counts[i] ?? 0);
  for (const label of labels) more[label] += 1;
  return more;
}
function wholes(type, bytes) {
  const raw = bytes.slice().buffer;
  if (type === "I64") return Array.from(new BigInt64Array(raw), Number);
  return Array.from(type === "U8" ? new Uint8Array(raw) : type === "I8" ? new Int8Array(raw) : type === "I16" ? new Int16Array(raw) : new Int32Array(raw));
}

// src/seen_rows.ts
var SEEN = "seen";
var JOBS_KEPT2 = 100;
var SeenRows = class _SeenRows {
  constructor(source, counts) {
    this.source = source;
    this.counts = counts;
  }
  source;
  counts;
  /** What an earlier program wrote down. A text that cannot be read costs one evaluation that is too good, and stops nobody. */
  static async read(source) {
    const counts = /* @__PURE__ */ new Map();
    try {
      const kept = JSON.parse(await source.recall(SEEN) ?? "null");
      const known = kept?.of === source.place ? Object.entries(kept.counts) : [];
      for (const [job, count] of known) if (Number.isSafeInteger(count) && count >= 0) counts.set(job, count);
    } catch (error) {
      console.info(`all rows count as new: ${error}`);
    }
    return new _SeenRows(source, counts);
  }
  count(job) {
    return this.counts.get(job) ?? 0;
  }
  /** A lease was trained when there were this many. */
  async note(job, count) {
    if (this.counts.get(job) === count) return;
    this.counts.delete(job);
    this.counts.set(job, count);
    for (const oldest of [...this.counts.keys()].slice(0, -JOBS_KEPT2)) this.counts.delete(oldest);
    try {
      await this.source.keep(SEEN, JSON.stringify({ of: this.source.place, counts: Object.fromEntries(this.counts) }));
    } catch (error) {
      console.info(`how many rows were seen could not be written down: ${error}`);
    }
  }
};

// src/trainer.ts
var PROOF_ERROR = 0.01;
var STEP_SCALE = 2 ** 32;
var EVALUATION = 1702257004;
var EVALUATION_CHUNK = 1e3;
var TYPES = {
  F32: ["float32", Float32Array],
  F64: ["float64", Float64Array],
  U8: ["uint8", Uint8Array],
  BOOL: ["bool", Uint8Array],
  I8: ["int8", Int8Array],
  I16: ["int16", Int16Array],
  U16: ["uint16", Uint16Array],
  I32: ["int32", Int32Array],
  U32: ["uint32", Uint32Array],
  I64: ["int64", BigInt64Array],
  U64: ["uint64", BigUint64Array],
  F16: ["float16", Uint16Array]
};
var Trainer = class _Trainer {
  constructor(spec, graphs, file, step_, evaluate_, train_, test, first, parameters, ownLayout2, firstOwn, runtime, own) {
    this.spec = spec;
    this.graphs = graphs;
    this.file = file;
    this.step_ = step_;
    this.evaluate_ = evaluate_;
    this.train_ = train_;
    this.test = test;
    this.parameters = parameters;
    this.ownLayout = ownLayout2;
    this.firstOwn = firstOwn;
    this.runtime = runtime;
    this.own = own;
    this.model = first;
    this.ownPart = firstOwn;
    const { plan } = spec;
    if (plan.shuffle === "window") this.windows = new WindowShuffle(train_.rows, plan.seed, train_.window);
  }
  spec;
  graphs;
  file;
  step_;
  evaluate_;
  train_;
  test;
  parameters;
  ownLayout;
  firstOwn;
  runtime;
  own;
  model;
  /** The device's own part of the model, as a lease begins; empty if all of it is shared. */
  ownPart;
  states = [];
  count = 0;
  evaluation = null;
  windows = null;
  order = null;
  /** Why the lease under way is to end; empty: it is not. */
  interrupted = "";
  ort = null;
  /** Takes a step by the processor, and by graphics where that was chosen. */
  processor = null;
  graphics = null;
  isChosen = false;
  /** Why the graphics processor does not compute. */
  why = "";
  /** How many own rows this device had when they were last counted. */
  held = 0;
  /** What computes, and why nothing faster does, for a person. */
  get engine() {
    if (this.graphics) return "WebGPU";
    return this.why ? `${this.runtime.name}
${this.why}` : this.runtime.name;
  }
  /** Bring everything here by its hash, load it, and prove the known batch. `isGraphicsWanted`: even where it is slower. `source`:
   * where this device has rows of its own, for a job that trains on them. */
  static async prepare(spec, blobs, engine, source, isGraphicsWanted, tell2) {
    tell2(say("why.fetching-model"));
    const file = await blobs.fetch(spec.graphs);
    if (file.length > FILE_MAX_BYTES) throw new Error(`the graphs of a job have ${file.length} bytes`);
    const { tensors, notes } = readTensors(file);
    const graphs = JSON.parse(notes.portable);
    if (graphs.format !== 1) throw new Error(`graphs of format ${graphs.format}, which this program does not know: load a newer one`);
    const [train, evaluate] = ["train", "evaluate"].map((name) => tensors.get(name).bytes.slice());
    for (const graph of [train, evaluate]) checkGraph(graph);
    const own = spec.plan.data === "local" ? await ownRows(graphs.columns, source) : null;
    const { first, parameters, own: ownLayout2 } = firstModel(await blobs.fetch(spec.initial));
    const kept = tensors.get("own"), firstOwn = kept ? asFloats(kept) : new Float32Array();
    if (firstOwn.length !== (ownLayout2?.values ?? 0)) throw new Error("the job's graphs have another own part of the model than its first model");
    const cacheBytes = (spec.plan.cache_mb ?? 0) * 2 ** 20;
    const [trainSet, testSet] = [await examples(spec.train, blobs, tell2, spec.plan.shuffle === "window", cacheBytes), await examples(spec.test, blobs, tell2)];
    if (spec.plan.shuffle !== "window") await trainSet.fetchAll();
    const made = new _Trainer(spec, graphs, tensors, train, evaluate, trainSet, testSet, first, parameters, ownLayout2, firstOwn, engine, own);
    await made.recount();
    tell2(say("why.trying"));
    await made.chooseEngine(isGraphicsWanted);
    return made;
  }
  /** The processor has to prove itself. The graphics processor has to agree with it on a whole batch too, and be faster. */
  async chooseEngine(isGraphicsWanted) {
    this.why = await this.runtime.whyNoGraphics();
    if (!this.why) {
      try {
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
    const wrong2 = await this.whyWrong();
    if (wrong2) throw new Error(`this device computes ${wrong2}; it does not train this job`);
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
  async tryGraphics(isGraphicsWanted) {
    const many = Math.min(this.spec.plan.batch_size, this.train_.count);
    const rows = many ? await this.train_.take(Array.from({ length: many }, (_, i) => i)) : this.knownRows;
    const byProcessor = await this.timed(rows);
    this.graphics = await this.runtime.session(this.ort, this.step_, true);
    const wrong2 = await this.whyWrong();
    if (wrong2) {
      console.info(`the graphics processor computes ${wrong2}`);
      return "the graphics processor computes otherwise";
    }
    const byGraphics = await this.timed(rows);
    const wanted = this.known.map((value, i) => Number.isFinite(value) ? byProcessor.after[i * this.stride] - this.model[i * this.stride] : NaN);
    const error = this.apart(byGraphics.after, wanted);
    if (!(error <= PROOF_ERROR)) {
      console.info(`the graphics processor computes a batch otherwise than WebAssembly, by ${error.toPrecision(2)} of the update`);
      return "the graphics processor computes otherwise";
    }
    return byGraphics.ms < byProcessor.ms || isGraphicsWanted ? "" : "the graphics processor is slower";
  }
  /** The second of two steps on the same batch: the first one may compile. At a rate so high that rounding of weights is nothing. */
  async timed(rows) {
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
  async dropGraphics() {
    const { graphics } = this;
    this.graphics = null;
    await graphics?.release().catch(() => void 0);
  }
  /** Take the one step whose result is known. How that differs; empty: it does not. */
  async whyWrong() {
    const proof = this.graphs.proof;
    const columns = this.knownRows;
    const examples2 = Object.values(columns)[0].shape[0];
    this.begin();
    const draws = drawAll(this.graphs.draws, examples2, BigInt(proof.seed));
    const { after, loss } = await this.step(this.model, this.firstOwn, columns, proof.rate, proof.weight_decay, draws);
    const error = this.apart(after, this.known);
    this.begin();
    if (error <= PROOF_ERROR && Math.abs(loss - proof.loss) <= PROOF_ERROR * (1 + Math.abs(proof.loss))) return "";
    return `the job's known batch otherwise than PyTorch: its update differs by ${error.toPrecision(2)} of its length, its loss is ${loss.toPrecision(6)} and not ${proof.loss.toPrecision(6)}`;
  }
  get knownRows() {
    const columns = {};
    for (const [name, { dtype, shape, bytes }] of this.file) {
      if (name.startsWith("column.")) columns[name.slice(7)] = { type: dtype, shape, bytes };
    }
    return columns;
  }
  /** What the known batch changes in every so many-th value; no number where that tells nothing. */
  get known() {
    return asFloats(this.file.get("proof"));
  }
  get stride() {
    return Math.max(1, this.graphs.proof.stride);
  }
  /** The distance of an update from the one that is wanted, as a part of its length. */
  apart(after, wanted) {
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
  begin() {
    this.states = Array.from({ length: this.graphs.states }, () => this.tensor("float32", new Float32Array(this.parameters + (this.ownLayout?.parameters ?? 0))));
    this.count = 0;
  }
  /** Train these batches, in order. */
  async train(epoch, batches, rate, onBatch) {
    const { plan } = this.spec;
    return this.trainBatches(batches.length, rate, onBatch, async (i) => {
      const rows = await this.train_.take(this.places(epoch, batches[i] * plan.batch_size, (batches[i] + 1) * plan.batch_size));
      return { rows, seed: mix(plan.seed, epoch, batches[i]) };
    });
  }
  /** Count this device's own rows again. */
  async recount() {
    if (this.own) this.held = await this.own.rows.look();
    return this.held;
  }
  /** Evaluate the new rows, then train on this many of this device's own rows. */
  async learn(epoch, lease, examples2, rate, begin, onBatch) {
    const began = performance.now();
    const { own, spec: { job, plan } } = this;
    if (!own) throw new Error("this job's examples are not the device's own");
    const held = await this.recount();
    if (!held) throw new Error("this device has no rows of its own yet");
    const passes = plan.local_epochs || 1;
    const chosen = chooseRows({ seed: plan.seed, batch_size: plan.batch_size, passes }, held, own.seen.count(job), epoch, lease, examples2);
    begin(chosen.parts.length);
    const sums = [];
    let fresh2 = 0, labels = [];
    for (const span of chosen.judged) {
      await this.judge(await own.rows.take(span), this.ownPart, mix(plan.seed, EVALUATION, epoch, lease), sums);
      fresh2 += span.length;
      await this.breathe();
    }
    const learned = await this.trainBatches(chosen.parts.length, rate, onBatch, async (i) => {
      const rows = await own.rows.take(chosen.parts[i]);
      if (plan.share_labels && i < chosen.first_pass) labels = withLabels(labels, rows);
      return { rows, seed: mix(plan.seed, epoch, lease, i) };
    });
    await own.seen.note(job, held);
    const fresh_metrics = fresh2 ? this.metricsOf(sums) : [];
    return { ...learned, examples: chosen.examples, loss_sum: learned.loss_sum / passes, seconds: (performance.now() - began) / 1e3, fresh: fresh2, fresh_metrics, labels };
  }
  async trainBatches(batches, rate, onBatch, take) {
    const began = performance.now();
    const { plan } = this.spec;
    if (plan.inner_state !== "kept") this.begin();
    const scaled = this.graphs.rate * (rate ? rate / plan.learning_rate : 1);
    const scale = batches === 1 && !this.graphs.states ? STEP_SCALE : 1;
    let vector = this.model, own = this.ownPart, loss_sum = 0, examples2 = 0;
    for (let i = 0; i < batches; i++) {
      const { rows, seed } = await take(i);
      const count = Object.values(rows)[0].shape[0];
      const draws = drawAll(this.graphs.draws, count, seed);
      const { after, ownAfter: ownAfter2, loss } = await this.step(vector, own, rows, scaled * scale, this.graphs.weight_decay, draws);
      [vector, own] = [after, ownAfter2];
      loss_sum += loss * count;
      examples2 += count;
      onBatch(i + 1);
      await this.breathe();
    }
    const delta = vector.map((value, i) => Math.fround(value - this.model[i]) / (i < this.parameters ? scale : 1));
    const parameters = this.ownLayout?.parameters ?? 0;
    const ownAfter = own.map((value, i) => this.ownPart[i] + Math.fround(Math.fround(value - this.ownPart[i]) / (i < parameters ? scale : 1)));
    const isFinite = delta.every(Number.isFinite) && ownAfter.every(Number.isFinite);
    return { delta, own: ownAfter, examples: examples2, loss_sum: isFinite ? loss_sum : NaN, seconds: (performance.now() - began) / 1e3 };
  }
  async evaluate(chunks, size) {
    const step = size || EVALUATION_CHUNK, batch = this.spec.plan.batch_size;
    const sums = [];
    let examples2 = 0;
    for (const chunk of chunks) {
      const stop = Math.min((chunk + 1) * step, this.test.count);
      for (let low = chunk * step; low < stop; low += batch) {
        const high = Math.min(low + batch, stop);
        const rows = await this.test.take(Array.from({ length: high - low }, (_, i) => low + i));
        await this.judge(rows, this.firstOwn, mix(this.spec.plan.seed, EVALUATION, low), sums);
        examples2 += high - low;
        await this.breathe();
      }
    }
    return { examples: examples2, metrics: this.metricsOf(sums) };
  }
  /** Evaluate these rows by the model as it came, and add the results to the sums. */
  async judge(rows, own, seed, sums) {
    this.evaluation ??= await this.runtime.session(this.ort, this.evaluate_);
    const draws = drawAll(this.graphs.evaluation_draws, Object.values(rows)[0].shape[0], seed);
    const feed = this.feed(this.evaluation, { vector: this.tensor("float32", this.model), own: this.tensor("float32", own), ...this.columns(rows), ...this.drawn(draws) });
    const found = await this.withoutValues(this.evaluation.run(feed));
    found[this.evaluation.outputNames[0]].data.forEach((sum, i) => sums[i] = (sums[i] ?? 0) + Number(sum));
  }
  metricsOf(sums) {
    let at = 0;
    return this.graphs.metrics.map(({ name, kind, sums: many, lower }) => ({ name, kind, lower, sums: sums.slice(at, at += many) }));
  }
  /** Replace the engine's text about a value of a row: errors are reported, and rows stay here. */
  async withoutValues(running) {
    if (!this.own) return running;
    return running.catch((error) => {
      if (/alloc/i.test(String(error))) throw new Error("the engine has too little memory for these rows");
      throw new Error("the job's step does not take these rows: look for a whole number outside the task's classes");
    });
  }
  places(epoch, start, stop) {
    if (this.windows) return this.windows.indices(epoch, start, Math.min(stop, this.train_.count));
    if (this.order?.epoch !== epoch) this.order = { epoch, places: epochOrder(this.train_.count, this.spec.plan.seed, epoch) };
    return this.order.places.subarray(start, stop);
  }
  async step(vector, own, rows, rate, decay, draws) {
    this.count += 1;
    const given = {
      vector: this.tensor("float32", vector),
      own: this.tensor("float32", own),
      count: this.tensor("float32", Float32Array.of(this.count), []),
      // Graphs of earlier releases have it so.
      step: this.tensor("float64", Float64Array.of(this.count), []),
      rate: this.tensor("float32", Float32Array.of(rate), []),
      weight_decay: this.tensor("float32", Float32Array.of(decay), []),
      ...this.columns(rows),
      ...this.drawn(draws)
    };
    this.states.forEach((state, i) => given[`state${i}`] = state);
    const found = await this.withoutValues(this.run(this.feed(this.processor, given)));
    const [after, ...rest] = this.processor.outputNames.map((name) => found[name]);
    const ownAfter = this.ownLayout ? rest.shift().data : own;
    this.states = rest.slice(0, -1);
    return { after: after.data, ownAfter, loss: Number(rest.at(-1).data[0]) };
  }
  async run(feed) {
    if (!this.graphics) return this.processor.run(feed);
    try {
      return await this.graphics.run(feed);
    } catch (error) {
      if (!this.isChosen) throw error;
      console.info(`the graphics processor: ${error}`);
      this.why = "the graphics processor failed";
      await this.dropGraphics();
      return this.processor.run(feed);
    }
  }
  columns(rows) {
    return Object.fromEntries(Object.entries(rows).map(([name, { type, shape, bytes }]) => {
      const [kind, Kind] = TYPES[type] ?? [];
      if (!kind) throw new Error(`a column of type ${type}, which this program does not read`);
      return [`column.${name}`, this.tensor(kind, new Kind(bytes.slice().buffer), shape)];
    }));
  }
  drawn(draws) {
    return Object.fromEntries(Object.entries(draws).map(([name, { type, data, dims }]) => [name, this.tensor(type, data, dims)]));
  }
  tensor(type, data, dims = [data.length]) {
    return new this.ort.Tensor(type, data, dims);
  }
  feed(session, given) {
    return Object.fromEntries(session.inputNames.map((name) => {
      if (!(name in given)) throw new Error(`the job's graph reads ${name}, which this program does not have`);
      return [name, given[name]];
    }));
  }
  /** Let sockets and timers speak between batches, and end a lease that is out of time. */
  async breathe() {
    await new Promise((resolve) => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => {
        channel.port1.close();
        resolve();
      };
      channel.port2.postMessage(null);
    });
    if (this.interrupted) throw new Error(this.interrupted);
  }
  async release() {
    await this.dropGraphics();
    await this.processor.release();
    await this.evaluation?.release();
  }
};
async function ownRows(plain, source) {
  const columns = columnsFromPlain(plain);
  if (!columns.length) throw new Error("the job's graphs do not say what rows devices have: submit it again from a newer release");
  if (!source) throw new Error("this device has no rows of its own");
  return { rows: await source.open(columns), seen: await SeenRows.read(source) };
}
async function examples(set, blobs, tell2, isWindowed = false, cacheBytes = 0) {
  if (!set.examples) return new Examples([], () => Promise.reject(new Error("a set without examples")));
  const manifest = JSON.parse(new TextDecoder().decode(await blobs.fetch(set.manifest)));
  const entries = manifest.shards;
  const window = isWindowed ? windowShards(cacheBytes, Math.max(1, ...entries.map(({ bytes }) => bytes))) : 0;
  const found = new Examples(entries, (sha256) => {
    tell2(say("why.fetching-examples"));
    return blobs.fetch(sha256);
  }, window);
  if (found.count !== set.examples) throw new Error(`a set of ${found.count} examples where the job says ${set.examples}`);
  return found;
}

// src/own_part.ts
var UNDOABLE_MAX = 8;
var OwnPart = class {
  /** `isInStep`: a version is made of the updates of all leases on the one before, so an update is in the history if the version
   * after its own is. */
  constructor(isInStep2, act, record) {
    this.isInStep = isInStep2;
    this.act = act;
    this.record = record;
  }
  isInStep;
  act;
  record;
  /** Whether the model has one. */
  isThere = false;
  /** Of the update that the leader has not spoken about yet. `isInDoubt`: the session ended after it was sent. */
  open = null;
  /** The updates that were taken last. Nobody knows yet that they are durable. */
  taken_ = [];
  /** An update was made; the device has the own part that belongs to it. */
  trained({ term, lease, version }) {
    if (this.isThere) this.open = { term, lease, version, isInDoubt: false };
  }
  /** The leader of this term spoke after the update was sent, and did not refuse it. Messages come in order. */
  taken(term) {
    const { open: open3 } = this;
    if (!open3 || open3.term !== term) return;
    if (open3.isInDoubt) return this.lost();
    this.taken_ = [...this.taken_, open3].slice(-UNDOABLE_MAX);
    this.act({ action: "SettleOwn", lease: open3.lease, taken: true, undoable: this.taken_.length });
    this.open = null;
  }
  /** Nobody knows whether the update came. The versions of a new leader will show it. */
  inDoubt() {
    if (this.open) this.open.isInDoubt = true;
  }
  /** The leader of this term began from version `began`, and `durable_version` is the newest one that is durable. */
  onWork({ term, began, durable_version: durable }) {
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
    while (this.taken_.length > 1 && this.taken_[0].version < durable) this.taken_.shift();
    if (!lost) return;
    this.record("residual.dropped", `the job goes on from version ${began}, without ${lost} of our updates: the own part goes back`);
    this.act({ action: "UndoOwn", leases: lost });
  }
  /** The update will not be sent, or nobody knows whether it came. */
  lost() {
    if (this.open) this.act({ action: "SettleOwn", lease: this.open.lease, taken: false, undoable: 1 });
    this.open = null;
  }
  /** The leader says that it merged this update before. */
  merged({ term, lease }) {
    if (this.open?.term === term && this.open?.lease === lease) this.taken(term);
  }
  /** Also after a word of the leader that was on its way before the update came. */
  refused({ term, lease }) {
    const last = this.taken_.at(-1);
    if (this.open?.term === term && this.open?.lease === lease) this.lost();
    else if (last?.term === term && last?.lease === lease) {
      this.act({ action: "SettleOwn", lease, taken: false, undoable: 1 });
      this.taken_.pop();
    }
  }
};

// src/worker_role.ts
var RETRY_S = [0, 1, 2, 5, 10, 30];
var REASON_MAX_CHARS = 4096;
var TRACEBACK_MAX_CHARS = 8192;
var ASK = "ask-again";
var DEADLINE = "lease-deadline";
var RETRY = "retry";
var SENT = "the update was sent; waiting for the next version";
var NOTHING_HELD = [0, -1];
var Worker = class {
  constructor(job, leader, term, plan) {
    this.job = job;
    this.leader = leader;
    this.term = term;
    const privacy = privacyOf(plan);
    this.isLocal = plan.data === "local";
    this.participation = privacy && new Participation(privacy);
    this.own = new OwnPart(isInStep(plan), (action) => this.act(action), (kind, reason) => this.record(kind, reason));
  }
  job;
  leader;
  term;
  phase = "preparing";
  reason = "fetching the task and its data";
  isConnected = false;
  isPrepared = false;
  held = null;
  holds = NOTHING_HELD;
  newest = [0, 0];
  failures = 0;
  retryWaits = false;
  /** Of the device when it last trained or counted its rows; null: the job does not train on them. */
  state = null;
  actions = [];
  isLocal;
  participation;
  own;
  /** Leases in a row that the device declined because of its privacy account. */
  declined = 0;
  /** The lease that it holds; null: none. */
  get work() {
    return this.held?.work ?? null;
  }
  handle(event) {
    this.on(event);
    const actions = this.actions;
    this.actions = [];
    return actions;
  }
  on(event) {
    switch (event.event) {
      case "Started":
        return this.act({ action: "Prepare" });
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
      case "PrepareFailed":
        return this.onPrepareFailed(event.reason, event.traceback);
      case "Connected":
        if (event.node === this.leader) this.onLeaderConnected();
        return;
      case "Disconnected":
        if (event.node !== this.leader) return;
        this.isConnected = false;
        if (!this.held) this.own.inDoubt();
        this.holds = NOTHING_HELD;
        return;
      case "Reassigned":
        return this.onReassigned(event.term, event.leader);
      case "Received":
        return this.onMessage(event.kind, event.body, event.tensors);
      case "Trained":
      case "EvaluationDone":
        return this.onResult(event);
      case "Participated":
        return this.onCounted(event);
      case "NotParticipated":
        return this.onNotCounted(event);
      case "TrainerFailed":
        return this.onTrainerFailed(event.lease, event.reason, event.traceback);
      case "TimerFired":
        return this.onTimer(event.name);
      case "StopRequested":
        return this.act({ action: "End", reason: event.reason });
    }
  }
  // Messages ----------------------------------------------------------------------------------------------------
  onMessage(kind, body, tensors) {
    switch (kind) {
      case "Work":
        return this.onWork(body, tensors);
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
      case "UpdateRefused":
        return this.onRefused(body);
      case "Finished":
        this.settleOwn();
        this.cancel(DEADLINE);
        return this.act({ action: "End", reason: body.reason });
    }
  }
  /** Note on a leader's message that it took the earlier update, which it did not refuse. */
  settleOwn() {
    if (!this.held) this.own.taken(this.term);
  }
  onWork(work, tensors) {
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
      this.held = null;
      return this.askForWork();
    }
    this.begin(work, tensors);
  }
  /** Decline a lease that the device's account forbids: report the account, and ask for other work ever less often. */
  decline(work, why) {
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
  has(version) {
    return this.holds[0] === this.term && this.holds[1] === version;
  }
  begin(work, tensors) {
    this.timer(DEADLINE, work.deadline_s);
    this.holds = [work.term, work.version];
    const isTraining = work.kind === "train";
    const told2 = `version ${work.version}, ${work.batches.length} batch(es) of epoch ${work.epoch}`;
    this.become(isTraining ? "training" : "evaluating", told2);
    const { lease, epoch, batches, rate, version, examples: examples2 } = work;
    if (isTraining) this.act({ action: "Train", lease, epoch, batches, rate, version, examples: examples2, tensors });
    else this.act({ action: "Evaluate", lease, chunks: batches, size: work.examples, tensors });
  }
  onRefused(refused) {
    if (this.held && isOf(this.held, refused) && this.held.result) {
      this.held = null;
      this.become("waiting", `update rejected: ${refused.reason}`);
    }
    if (refused.is_copy) this.own.merged(refused);
    else this.own.refused(refused);
    this.record("update.rejected", refused.reason);
    const [term, lease] = this.newest;
    const isNewer = refused.term > term || refused.term === term && refused.holds > lease;
    if (refused.holds && refused.term === this.term && isNewer) this.askForWork();
  }
  // The trainer -------------------------------------------------------------------------------------------------
  onResult(event) {
    const held = this.held;
    if (!held || held.work.lease !== event.lease || held.work.kind === "train" !== (event.event === "Trained")) return;
    this.cancel(DEADLINE);
    const problem = problemOf(event);
    if (problem !== null) return this.onDiverged(held, problem);
    this.failures = 0;
    const { term, version } = held.work;
    const common = { job: this.job, term, lease: event.lease, version, examples: event.examples };
    held.result = event.event === "Trained" ? this.update(held.work, common, event) : { kind: "Evaluated", body: { ...common, metrics: event.metrics }, tensors: {} };
    if (term < this.term) {
      this.unsend();
      this.held = null;
      this.askForWork();
    } else if (this.deliver(held)) this.held = null;
  }
  update(work, common, event) {
    const { loss_sum, seconds: train_s, fresh: fresh2, fresh_metrics, labels, state, tensors } = event;
    this.state = state ?? null;
    this.own.trained(work);
    if (this.participation) {
      const delta = clipped(tensors.delta, this.participation.privacy.clip);
      return { kind: "Update", body: { ...common, examples: Math.max(1, work.examples), loss_sum: 0, train_s, state }, tensors: { delta } };
    }
    return { kind: "Update", body: { ...common, loss_sum, train_s, fresh: fresh2, fresh_metrics, labels, state }, tensors };
  }
  isCounted(held) {
    return !this.participation || this.participation.isCounted(held.work);
  }
  onCounted(event) {
    const { held, participation } = this;
    participation?.onCounted(event);
    if (!participation || !held || !isOf(held, event) || held.result?.kind !== "Update") return;
    const { body } = held.result;
    held.result.body = { ...body, state: participation.told(body.state ?? null, this.term) };
    if (this.deliver(held)) this.held = null;
  }
  /** Drop an update that cannot be counted. */
  onNotCounted({ term, lease, reason }) {
    this.participation?.onNotCounted();
    this.record("update.withheld", `lease ${lease}: ${reason}`);
    if (!this.held || !isOf(this.held, { term, lease })) return;
    this.unsend();
    this.held = null;
    this.become("failing", reason);
    if (this.isConnected) this.failed(term, lease, reason, "");
    this.timer(ASK, RETRY_S.at(-1));
  }
  /** Send a result; keep it while there is no session. True: it is out of hand. */
  deliver(held) {
    const { work, result } = held;
    if (result?.kind === "Update" && this.isConnected && !this.isCounted(held)) {
      const { term, version, lease } = work;
      if (this.participation.asks(work)) this.act({ action: "Participate", term, version, lease });
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
  unsend() {
    if (this.held) this.own.lost();
  }
  onDiverged(held, reason) {
    this.held = null;
    this.record("training.diverged", reason);
    if (this.isConnected) {
      this.send("Failed", { job: this.job, term: held.work.term, lease: held.work.lease, reason, traceback: "", diverged: true });
    }
    this.askForWork();
  }
  onTrainerFailed(lease, reason, traceback) {
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
  onPrepareFailed(reason, traceback) {
    this.failures += 1;
    this.record("preparation.failed", reason);
    if (this.isConnected) this.failed(this.term, 0, reason, traceback);
    this.retry(reason);
  }
  failed(term, lease, reason, traceback) {
    const told2 = { reason: clip(reason), traceback: clip(traceback, TRACEBACK_MAX_CHARS) };
    this.send("Failed", { job: this.job, term, lease, ...told2, diverged: false });
  }
  retry(reason) {
    const wait_s = RETRY_S[Math.min(this.failures - 1, RETRY_S.length - 1)];
    this.become("failing", reason);
    if (wait_s === 0) return this.act({ action: "Prepare" });
    this.retryWaits = true;
    this.timer(RETRY, wait_s);
  }
  // Sessions and time -------------------------------------------------------------------------------------------
  onLeaderConnected() {
    this.isConnected = true;
    if (!this.retryWaits) return this.resume();
    this.retryWaits = false;
    this.cancel(RETRY);
    this.act({ action: "Prepare" });
  }
  resume() {
    if (!this.held) this.askForWork();
    else if (this.held.result && this.deliver(this.held)) this.held = null;
  }
  askForWork() {
    if (!(this.isConnected && this.isPrepared) || this.held) return;
    this.become("ready", "waiting for a lease");
    this.send("Ready", { job: this.job, holds_term: this.holds[0], holds_version: this.holds[1], state: this.participation?.told(this.state, this.term) ?? this.state });
  }
  /** Ask for work after a wait. The device may have other rows of its own by now, and the leader goes by their number. */
  askAgain() {
    if (this.isLocal && this.isPrepared && !this.held) this.act({ action: "CountExamples" });
    else this.askForWork();
  }
  onReassigned(term, leader) {
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
  onTimer(name) {
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
  become(phase, reason) {
    this.phase = phase;
    this.reason = reason;
  }
  act(action) {
    this.actions.push(action);
  }
  send(kind, body, tensors = {}) {
    this.act({ action: "Send", to: this.leader, kind, body, tensors });
  }
  timer(name, after_s) {
    this.act({ action: "SetTimer", name, after_s });
  }
  cancel(name) {
    this.act({ action: "CancelTimer", name });
  }
  record(kind, reason) {
    this.act({ action: "Record", kind, reason });
  }
};
function isInStep({ pace, trust }) {
  return pace === "sync" || pace === "auto" && /\bprivate\b/.test(trust);
}
function isOf(held, message) {
  return held.work.term === message.term && held.work.lease === message.lease;
}
function problemOf(event) {
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
function clip(text, limit = REASON_MAX_CHARS) {
  const chars = Array.from(text.replace(/[\x00-\x08\x0b-\x1f\x7f-\x9f]/g, " ").replace(/[\ud800-\udfff]/gu, "?"));
  return chars.length <= limit ? chars.join("") : chars.slice(0, limit - 1).join("") + "…";
}
function tenths(value) {
  const low = Math.floor(value * 10);
  return value * 4 % 2 === 1 ? ((low + low % 2) / 10).toFixed(1) : value.toFixed(1);
}

// src/device.ts
var BACKOFF_S = [0.1, 0.5, 1, 2, 5, 10];
var REFUSED_S = 30;
var PROTOCOL = 2;
var KIND_MAX_CHARS = 128;
var Device = class {
  constructor(parts3) {
    this.parts = parts3;
    this.shown = {
      state: "new",
      reason: "",
      about: null,
      offer: null,
      node: "",
      cluster: "",
      job: "",
      threads: parts3.engine.threads,
      engine: "",
      epoch: 0,
      version: 0,
      leases: 0,
      examples: 0,
      loss: null,
      done: 0,
      of: 0,
      down_bytes: 0,
      up_bytes: 0,
      files_bytes: 0,
      rows: {},
      fresh: 0,
      fresh_metrics: []
    };
  }
  parts;
  shown;
  listeners = { state: /* @__PURE__ */ new Set(), progress: /* @__PURE__ */ new Set(), offer: /* @__PURE__ */ new Set(), record: /* @__PURE__ */ new Set() };
  identity = null;
  about = "";
  /** Why it does not train although it was told to; empty: it may. */
  why = "";
  isStarted = false;
  /** Its user wants the graphics processor to compute even where that is slower. */
  isGraphicsWanted = false;
  isDialling = false;
  attempts = 0;
  redial;
  incarnation = fresh();
  control = null;
  work = null;
  blobs = null;
  /** Jobs whose download its user agreed to, and how large a later one may be without being asked. */
  agreed = /* @__PURE__ */ new Set();
  later_bytes = 0;
  /** No job that downloads more is agreed to by `start`. */
  most_bytes = Infinity;
  /** Nobody is there to be asked: what was said once holds for jobs that learn from its rows too. */
  isUnattended = false;
  /** The assignment that waits for its user's answer. */
  offered = null;
  isWelcome = false;
  beat;
  seq = 0;
  heard_s = 0;
  heartbeat_s = 1;
  welcome = {};
  jobs = /* @__PURE__ */ new Map();
  /** What is being written down of own parts of models, one after the other. A job that is over here may still write. */
  writing = Promise.resolve();
  /** Listen; what is returned ends that. */
  on(name, hear2) {
    this.listeners[name].add(hear2);
    return () => void this.listeners[name].delete(hear2);
  }
  get now() {
    return { ...this.shown };
  }
  /** Who asks and what for, by a link's token or by the certificate of this device: before anything is downloaded. */
  async look(secret = "") {
    this.identity = await this.parts.keys.load();
    await this.lookAbout(secret);
    return this.now;
  }
  /** Spend a token, and take part in the jobs that `look` named. `wanted`: a name to be known by. `about`: what this device
   * is, such as "Chromium 150 on Linux". */
  async join(secret, wanted, about2) {
    this.tell({ state: "joining", reason: say("why.joining") });
    try {
      this.identity = await join(this.parts.door, this.parts.keys, secret, wanted);
    } catch (error) {
      return this.tell({ state: "refused", reason: inTheirWords(error) });
    }
    this.start(about2);
  }
  /** Agree to later jobs that download no more than this each. Jobs that learn from this device's own rows are asked about all the same. */
  later(megabytes) {
    this.later_bytes = megabytes * 1e6;
  }
  /** Agree to jobs that download no more than this each, whether `look` named them or they come later, and to no others. For a
   * program without a person: also to those that learn from its rows. */
  limit(megabytes) {
    this.later_bytes = this.most_bytes = megabytes * 1e6;
    this.isUnattended = true;
  }
  /** This device has other rows now: count them, and ask for work with their number. */
  async recount() {
    const { about: about2, offer } = this.shown;
    this.tell({ rows: { ...this.shown.rows, ...await this.counted([...about2?.jobs ?? [], ...offer ? [offer] : []]) } });
    for (const job of this.jobs.values()) if (isLocal(job.assign)) this.post(job, { event: "TimerFired", name: ASK });
  }
  /** Delete this device's rows. Nothing that is not sent by now is sent any more, and no job has them. */
  async forgetRows() {
    const { rows } = this.parts;
    if (!rows?.forget) throw new Error("the rows of this device are not this program's to delete");
    const isAtWork = this.jobs.size > 0;
    if (isAtWork) this.part(say("why.rows-gone"));
    await this.afterWriting(() => rows.forget());
    for (const { job, own } of this.shown.about?.jobs ?? []) if (own) this.agreed.delete(job);
    for (const job of Object.keys(this.shown.rows)) this.agreed.delete(job);
    await this.recount();
    if (isAtWork) this.follow();
  }
  /** Delete once everything is written. A job that begins meanwhile reads its own part after that, and finds none. */
  async afterWriting(act) {
    const done = this.writing.then(act);
    this.writing = done.then(() => void 0, () => void 0);
    await done;
  }
  /** How many rows of its own this device has for each of these jobs. */
  async counted(offers) {
    const { rows } = this.parts, found = {};
    if (!rows) return found;
    for (const { job, own } of offers) {
      if (!own) continue;
      try {
        found[job] = await (await rows.open(columnsFromPlain(own.columns))).look();
      } catch (error) {
        this.emit("record", { kind: "rows.unknown", reason: told(error) });
        found[job] = 0;
      }
    }
    return found;
  }
  /** Rest for this reason, or go on if it is empty. */
  pause(why) {
    this.why = why;
    this.follow();
  }
  /** Compute by the graphics processor, from the next job on, even if that is slower. */
  graphics(isWanted) {
    this.isGraphicsWanted = isWanted;
  }
  /** Say goodbye. `start` goes on. */
  stop() {
    this.isStarted = false;
    this.part(say("why.left"));
    this.tell({ state: "stopped", reason: say("why.stopped") });
  }
  /** Leave the cluster: the key goes, the files of its jobs, and the rows that this program keeps. */
  async forget() {
    this.isStarted = false;
    this.part(say("why.gone"));
    await this.afterWriting(() => Promise.all([this.parts.keys.forget(), this.parts.blobs.forget(), this.parts.rows?.forget?.()]));
    this.identity = null;
    this.agreed.clear();
    this.tell({ state: "new", reason: "", node: "", cluster: "", about: null, rows: {} });
  }
  async lookAbout(secret) {
    const { identity } = this;
    const news = { reason: "", node: identity?.node ?? "", cluster: identity?.cluster ?? "" };
    if (identity || secret) {
      try {
        news.about = await about(this.parts.door, secret, identity);
      } catch (error) {
        if (!(error instanceof RefusedHere)) news.reason = say("why.unreachable");
        else if (!identity || !secret) [news.state, news.reason] = ["refused", refusal(error.message)];
        else news.about = await about(this.parts.door, secret, null).catch(() => null);
      }
    }
    news.rows = await this.counted(news.about?.jobs ?? []);
    this.tell(news);
  }
  /** Its user agreed to the jobs that `look` named. */
  agree() {
    for (const { job, once_bytes, own } of this.shown.about?.jobs ?? []) {
      const isSmall = this.most_bytes === Infinity || once_bytes <= this.most_bytes;
      if (isSmall && (!own || this.hasRows(job))) this.agreed.add(job);
    }
  }
  /** Whether this device can learn from its own rows for a job. One that nobody attends waits for them. */
  hasRows(job) {
    return this.isUnattended || (this.shown.rows[job] ?? 0) > 0;
  }
  /** Its user agreed to the job that was assigned meanwhile. */
  take() {
    const assign = this.offered;
    if (!assign || this.shown.offer?.own && !this.hasRows(assign.job)) return;
    this.offered = null;
    this.agreed.add(assign.job);
    this.tell({ offer: null });
    this.employ(assign);
  }
  /** Take part again as who it is, in the jobs that `look` named. */
  start(about2) {
    if (!this.identity) throw new Error("this device has not joined: call look() or join() first");
    this.about = about2;
    this.agree();
    this.isStarted = true;
    this.attempts = 0;
    this.tell({ node: this.identity.node, cluster: this.identity.cluster });
    this.follow();
  }
  /** Be connected if it may train, and gone if it may not: a device that rests says so, and holds no lease. */
  follow() {
    if (!this.isStarted) return;
    if (this.why) {
      this.part(this.why);
      this.tell({ state: "paused", reason: this.why });
    } else if (!this.control && !this.isDialling) void this.dial();
  }
  // Sessions ----------------------------------------------------------------------------------------------------
  async dial() {
    if (!this.identity || this.isDialling) return;
    clearTimeout(this.redial);
    this.isDialling = true;
    this.tell({ state: "connecting", reason: say("why.calling") });
    const { identity, incarnation } = this;
    const lost = (_, reason) => this.lost(reason || say("why.closed"));
    let work = null, control = null;
    try {
      work = await Lane.open(this.parts.door, identity, "Work", incarnation, { message: (message) => this.received(message), closed: lost });
      control = await Lane.open(this.parts.door, identity, "Control", incarnation, { message: (message) => this.received(message), closed: lost });
    } catch (error) {
      work?.close();
      this.isDialling = false;
      const isRefused = error instanceof RefusedHere;
      this.tell({ state: isRefused ? "refused" : "connecting", reason: inTheirWords(error) });
      return this.dialLater(isRefused ? REFUSED_S : void 0);
    }
    this.isDialling = false;
    [this.work, this.control] = [work, control];
    if (!this.isStarted || this.why) return this.part(this.why || say("why.left"));
    this.blobs ??= new Blobs(this.parts.door, identity, incarnation, this.parts.blobs, (bytes) => this.tell({ down_bytes: this.shown.down_bytes + bytes, files_bytes: this.shown.files_bytes + bytes }));
    this.heard_s = now_s();
    const { engine } = this.parts;
    const facts = { host: this.about, arch: engine.arch, cpus: engine.threads, onnx: engine.version, browser: this.about };
    control.send("Hello", { node: identity.node, incarnation, protocol: PROTOCOL, facts });
  }
  dialLater(after_s) {
    const wait_s = after_s ?? BACKOFF_S[Math.min(this.attempts++, BACKOFF_S.length - 1)] * (0.75 + Math.random() / 2);
    clearTimeout(this.redial);
    this.redial = setTimeout(() => this.follow(), wait_s * 1e3);
  }
  /** The connection is over: workers keep what they have, and it is dialled again. */
  lost(reason, after_s) {
    if (!this.control && !this.work) return;
    this.hangUp();
    for (const job of this.jobs.values()) this.post(job, { event: "Disconnected", node: job.assign.leader });
    this.tell({ state: "connecting", reason });
    this.dialLater(after_s);
  }
  hangUp() {
    clearTimeout(this.beat);
    this.control?.close();
    this.work?.close();
    this.blobs?.close();
    this.control = this.work = null;
    this.isWelcome = false;
  }
  /** Say goodbye: leases return at once. Everything of a job is let go. */
  part(reason) {
    clearTimeout(this.redial);
    this.control?.send("Leave", { reason });
    for (const job of [...this.jobs.keys()]) this.end(job);
    this.offered = null;
    this.tell({ offer: null });
    this.hangUp();
    this.incarnation = fresh();
    this.blobs = null;
  }
  sendBeat() {
    clearTimeout(this.beat);
    if (now_s() - this.heard_s > this.welcome.lost_after_s + 2 * this.heartbeat_s) return this.lost(say("why.silent"));
    this.seq += 1;
    this.control?.send("Heartbeat", { seq: this.seq, is_idle: !this.jobs.size });
    this.beat = setTimeout(() => this.sendBeat(), this.heartbeat_s * 1e3);
  }
  // Messages ----------------------------------------------------------------------------------------------------
  received({ kind, body, tensors }) {
    this.heard_s = now_s();
    switch (kind) {
      case "Welcome":
        return this.onWelcome(body);
      case "HeartbeatSeen": {
        const before_s = this.heartbeat_s;
        this.heartbeat_s = body.next_s || this.welcome.heartbeat_s;
        if (this.heartbeat_s < before_s) this.sendBeat();
        return;
      }
      case "Assign":
        return this.onAssign(body);
      case "Dismiss":
        if (!body.job) return this.lost(`dismissed: ${body.reason}`, REFUSED_S);
        if (this.offered?.job === body.job) this.refuse(say("why.no-job"));
        if (this.jobs.has(body.job)) this.post(this.jobs.get(body.job), { event: "StopRequested", reason: body.reason });
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
  onWelcome(welcome) {
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
    if (this.shown.offer) this.tell({ state: "asking", reason: say("why.asking", this.shown.offer.name) });
    else if (!this.jobs.size) this.tell({ state: "waiting", reason: say("why.no-job") });
    for (const job of this.jobs.values()) this.post(job, { event: "Connected", node: job.assign.leader });
  }
  onAssign(assign) {
    const before = this.jobs.get(assign.job);
    if (assign.role !== "worker" || before && before.assign.term > assign.term) return;
    if (assign.leader_endpoint) {
      if (before) this.end(assign.job);
      return this.tell({ state: "waiting", reason: say("why.led-elsewhere", assign.leader) });
    }
    if (before) {
      before.assign = assign;
      return this.post(before, { event: "Reassigned", term: assign.term, leader: assign.leader });
    }
    if (isSealed(assign)) return this.tell({ state: "waiting", reason: say("why.sealed", assign.spec.name || assign.job) });
    if (isLocal(assign) && !this.parts.rows) return this.tell({ state: "waiting", reason: say("why.no-rows", assign.spec.name || assign.job) });
    if (this.agreed.has(assign.job)) return this.employ(assign);
    this.offered = assign;
    void this.offer(assign);
  }
  /** Ask its user before anything of a job is downloaded. */
  async offer(assign) {
    let known = null;
    try {
      known = await about(this.parts.door, "", this.identity);
    } catch (error) {
      this.emit("record", { kind: "offer.unknown", reason: told(error) });
    }
    if (this.offered !== assign) return;
    const nothing = { job: assign.job, name: assign.spec.name || assign.job, operator: "", once_bytes: NaN, update_bytes: NaN, minute_bytes: 0 };
    const offer = known?.jobs.find(({ job }) => job === assign.job) ?? nothing;
    const rows = { ...this.shown.rows, ...await this.counted([offer]) };
    if (this.offered !== assign) return;
    this.tell({ about: known ?? this.shown.about, offer, rows });
    if (offer.once_bytes <= this.later_bytes && (this.isUnattended || !isLocal(assign))) return this.take();
    this.tell({ state: "asking", reason: say("why.asking", offer.name) });
  }
  refuse(reason) {
    this.offered = null;
    this.tell({ state: "waiting", reason, offer: null });
  }
  employ(assign) {
    const worker = new Worker(assign.job, assign.leader, assign.term, assign.spec.plan);
    this.parts.blobs.begin(assign.job);
    const job = { assign, worker, timers: /* @__PURE__ */ new Map(), trainer: null, ledger: null, own: null, busy: Promise.resolve(), isOver: false };
    this.jobs.set(assign.job, job);
    this.tell({ job: assign.spec.name || assign.job, leases: 0, examples: 0, loss: null });
    this.post(job, { event: "Started" });
    if (this.isWelcome) this.post(job, { event: "Connected", node: assign.leader });
  }
  // The worker --------------------------------------------------------------------------------------------------
  post(job, event) {
    if (job.isOver) return;
    for (const action of job.worker.handle(event)) this.carryOut(job, action);
    if (!job.isOver) this.tell({ state: "working", reason: inWords(job.worker.phase, job.worker.reason, job.worker.work) });
  }
  carryOut(job, action) {
    switch (action.action) {
      case "Send": {
        const sent = this.work?.send(action.kind, action.body, action.tensors) ?? 0;
        const isUpdate = action.kind === "Update";
        return this.tell({ up_bytes: this.shown.up_bytes + sent, leases: this.shown.leases + (isUpdate ? 1 : 0) });
      }
      case "SetTimer":
        clearTimeout(job.timers.get(action.name));
        job.timers.set(action.name, setTimeout(() => this.post(job, { event: "TimerFired", name: action.name }), action.after_s * 1e3));
        return;
      case "CancelTimer":
        clearTimeout(job.timers.get(action.name));
        return;
      case "Record":
        return this.emit("record", { kind: action.kind, reason: action.reason });
      case "Prepare":
        return this.busy(job, () => this.prepare(job));
      case "SettleOwn":
        return this.write(job, (own) => own.settle(action.lease, action.taken, action.undoable));
      case "UndoOwn":
        return this.write(job, (own) => own.undo(action.leases));
      case "Participate":
        return void this.participate(job, action);
      case "CountExamples":
        return void this.count(job);
      case "Train":
        return this.busy(job, () => this.train(job, action));
      case "Evaluate":
        return this.busy(job, () => this.evaluate(job, action));
      case "Interrupt":
        if (job.trainer) job.trainer.interrupted = action.reason;
        return;
      case "End":
        this.end(job.assign.job);
        return this.tell({ state: "waiting", reason: say("why.no-other-job", action.reason) });
    }
  }
  /** Count the device's rows again. */
  async count(job) {
    try {
      if (!job.trainer) throw new Error("no trainer is loaded");
      await job.trainer.recount();
      this.post(job, { event: "ExamplesCounted", state: this.stateOf(job.trainer) });
    } catch (error) {
      this.post(job, { event: "TrainerFailed", lease: 0, reason: told(error), traceback: "" });
    }
  }
  /** What a leader is told of this device in a job that trains on its rows. */
  stateOf({ held }) {
    return { kind: clip(this.about, KIND_MAX_CHARS), examples: held };
  }
  /** One thing at a time: what comes meanwhile waits. */
  busy(job, act) {
    job.busy = job.busy.then(async () => {
      if (!job.isOver) await act();
    });
  }
  /** Write down what becomes of the own part of a job's model. The next lease begins from there, so it waits for that. */
  write(job, act) {
    const { own } = job;
    if (!own) return;
    const written = this.writing.then(() => act(own));
    this.writing = written;
    this.busy(job, () => written);
  }
  async prepare(job) {
    try {
      await job.trainer?.release();
      job.trainer = null;
      if (!this.blobs) throw new Error("there is no connection to the manager");
      const trainer = await Trainer.prepare(job.assign.spec, this.blobs, this.parts.engine, this.parts.rows, this.isGraphicsWanted, (reason) => this.tell({ reason }));
      if (job.isOver) return void await trainer.release();
      job.trainer = trainer;
      const privacy = privacyOf(job.assign.spec.plan);
      if (privacy && !this.parts.rows) throw new Error("this device keeps no account of what leaves it");
      if (privacy) job.ledger ??= await PrivacyLedger.read(this.parts.rows, job.assign.job, privacy);
      if (trainer.ownLayout) job.own ??= await this.ownValues(job.assign.job, trainer.ownLayout.text, trainer.firstOwn);
      this.tell({ engine: trainer.engine });
    } catch (error) {
      return this.post(job, { event: "PrepareFailed", reason: told(error), traceback: "" });
    }
    this.post(job, { event: "Prepared", state: isLocal(job.assign) ? this.stateOf(job.trainer) : void 0, participations: job.ledger?.taken, has_own: job.own !== null });
  }
  async ownValues(job, layout, first) {
    if (!this.parts.rows) throw new Error("a part of this model is each device's own, and this device keeps none");
    await this.writing;
    return OwnValues.read(this.parts.rows, job, layout, first);
  }
  async train(job, action) {
    const { lease, epoch, version, batches, rate } = action;
    const begin = (of) => this.tell({ epoch, version, done: 0, of });
    const onBatch = (done) => this.tell({ done });
    begin(batches.length);
    try {
      const trainer = loaded(job, action.tensors.model);
      if (job.own) trainer.ownPart = job.own.values;
      const isOwn = isLocal(job.assign);
      const lesson = isOwn ? await trainer.learn(epoch, batches[0], action.examples, rate, begin, onBatch) : await trainer.train(epoch, batches, rate, onBatch);
      const { delta, own, examples: examples2, loss_sum, ...rest } = lesson;
      job.own?.made(lease, own);
      const { fresh: fresh2 = 0, fresh_metrics = [] } = lesson;
      this.tell({ examples: this.shown.examples + examples2, loss: loss_sum / examples2, engine: trainer.engine, fresh: fresh2, fresh_metrics });
      this.post(job, { event: "Trained", lease, examples: examples2, loss_sum, ...rest, state: isOwn ? this.stateOf(trainer) : void 0, tensors: { delta } });
    } catch (error) {
      this.post(job, { event: "TrainerFailed", lease, reason: told(error), traceback: "" });
    }
  }
  /** Write down that an update is about to leave. */
  async participate(job, { term, version, lease }) {
    try {
      if (!job.ledger) throw new Error("this device keeps no account of what leaves it");
      await job.ledger.note(term, version);
    } catch (error) {
      return this.post(job, { event: "NotParticipated", term, lease, reason: `its participation could not be written down: ${told(error)}` });
    }
    this.post(job, { event: "Participated", term, version, lease });
  }
  async evaluate(job, action) {
    const { lease, chunks, size } = action;
    try {
      const { examples: examples2, metrics } = await loaded(job, action.tensors.model).evaluate(chunks, size);
      this.post(job, { event: "EvaluationDone", lease, examples: examples2, metrics });
    } catch (error) {
      this.post(job, { event: "TrainerFailed", lease, reason: told(error), traceback: "" });
    }
  }
  end(name) {
    const job = this.jobs.get(name);
    if (!job) return;
    job.isOver = true;
    this.jobs.delete(name);
    for (const timer of job.timers.values()) clearTimeout(timer);
    if (job.trainer) job.trainer.interrupted = "the job is over here";
    void job.busy.then(() => job.trainer?.release());
    this.tell({ job: "", engine: "", done: 0, of: 0 });
  }
  tell(news) {
    Object.assign(this.shown, news);
    this.emit("state", this.now);
    if (news.offer) this.emit("offer", news.offer);
    if (news.done !== void 0 || news.leases !== void 0) {
      const { job, epoch, version, done, of, leases, examples: examples2, loss, fresh: fresh2, fresh_metrics } = this.shown;
      this.emit("progress", { job, epoch, version, done, of, leases, examples: examples2, loss, fresh: fresh2, fresh_metrics });
    }
  }
  emit(name, news) {
    for (const hear2 of this.listeners[name]) hear2(news);
  }
};
function loaded(job, model) {
  if (!job.trainer) throw new Error("the trainer is gone");
  if (model && model.length !== job.trainer.model.length) throw new Error(`a model of ${model.length} values, not ${job.trainer.model.length}`);
  if (model) job.trainer.model = model;
  return job.trainer;
}
function isLocal(assign) {
  return assign.spec.plan.data === "local";
}
function isSealed(assign) {
  return /\bsealed\b/.test(assign.spec.plan.trust ?? "");
}
function fresh() {
  return Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
function told(error) {
  return clip(error instanceof Error ? error.message : String(error), 400);
}
function inTheirWords(error) {
  return error instanceof RefusedHere ? refusal(error.message) : told(error);
}
function now_s() {
  return performance.now() / 1e3;
}

// src/web/blob_store.ts
var NAME = "shoal-blobs";
var OTHERS_MAX_BYTES = 512 << 20;
var CacheBlobs = class {
  memory = /* @__PURE__ */ new Map();
  /** What the job under way is made of. */
  wanted = /* @__PURE__ */ new Set();
  job = "";
  async get(sha256) {
    this.wanted.add(sha256);
    const kept = this.memory.get(sha256);
    if (kept) return kept;
    const found = await open2().then((cache) => cache?.match(address(sha256)), () => void 0);
    return found ? new Uint8Array(await found.arrayBuffer()) : null;
  }
  async put(sha256, blob) {
    this.wanted.add(sha256);
    const headers = { "content-length": String(blob.length) };
    const store2 = async () => {
      const cache = await open2();
      if (!cache) throw new Error("no Cache Storage");
      await cache.put(address(sha256), new Response(blob, { headers }));
    };
    try {
      await this.makeRoom(OTHERS_MAX_BYTES);
      await store2();
    } catch {
      try {
        await this.makeRoom(0);
        await store2();
      } catch (error) {
        console.info(`a blob stays in memory only: ${error}`);
        this.memory.set(sha256, blob);
      }
    }
  }
  /** What it keeps is not what its hash says: a disk that failed, say. */
  async drop(sha256) {
    this.memory.delete(sha256);
    await open2().then((cache) => cache?.delete(address(sha256)), () => void 0);
  }
  /** What other jobs were made of may go. A job that goes on after a rest finds what it had. */
  begin(job) {
    if (job === this.job) return;
    this.job = job;
    this.wanted.clear();
    this.memory.clear();
  }
  async forget() {
    this.begin("");
    this.memory.clear();
    await globalThis.caches?.delete(NAME).catch(() => false);
  }
  /** Drop the oldest blobs of other jobs until they take no more than this. */
  async makeRoom(bytes) {
    const cache = await open2();
    if (!cache) return;
    const others = [];
    for (const request2 of await cache.keys()) {
      if (this.wanted.has(new URL(request2.url).pathname.slice(PREFIX.length))) continue;
      const size = Number((await cache.match(request2))?.headers.get("content-length") ?? 0);
      others.push([request2, size]);
    }
    let total = others.reduce((sum, [, size]) => sum + size, 0);
    for (const [request2, size] of others) {
      if (total <= bytes) return;
      await cache.delete(request2);
      total -= size;
    }
  }
};
var PREFIX = "/blob/";
function address(sha256) {
  return `${PREFIX}${sha256}`;
}
async function open2() {
  return globalThis.caches ? caches.open(NAME) : null;
}

// src/web/door.ts
var WebDoor = class {
  origin;
  constructor(origin) {
    this.origin = new URL(origin).origin;
  }
  /** The body is plain text to the browser, so that it asks nothing before a request to another site. */
  post(path, body) {
    return fetch(this.origin + path, { method: "POST", body });
  }
  socket(path) {
    return new WebSocket(this.origin.replace(/^http/, "ws") + path);
  }
};

// src/web/engine.ts
var ENGINE_VERSION = "1.30.0";
var BUILDS = { plain: "ort.wasm.min.mjs", graphics: "ort.jspi.min.mjs" };
var WEBGPU = { name: "webgpu", preferredLayout: "NCHW" };
var THREADS_MAX = 4;
function engineOf(door) {
  return `${door}/engine/${ENGINE_VERSION}/`;
}
var WebEngine = class {
  /** `files`: the folder of the library's files. A page of another site can serve them itself. */
  constructor(files) {
    this.files = files;
  }
  files;
  version = ENGINE_VERSION;
  name = "WebAssembly";
  arch = "wasm";
  loaded = /* @__PURE__ */ new Map();
  /** More than one only where the page is isolated from all others. */
  get threads() {
    const isIsolated = globalThis.crossOriginIsolated === true;
    return isIsolated ? Math.max(1, Math.min(THREADS_MAX, Math.floor((navigator.hardwareConcurrency || 1) / 2))) : 1;
  }
  /** A build of the library, loaded once. */
  load(build) {
    const known = this.loaded.get(build) ?? import(
      /* @vite-ignore */
      `${this.files}${BUILDS[build]}`
    ).then((ort) => {
      ort.env.wasm.wasmPaths = this.files;
      ort.env.wasm.numThreads = this.threads;
      ort.env.logLevel = "error";
      return ort;
    });
    this.loaded.set(build, known);
    return known;
  }
  session(ort, graph, isGraphics = false) {
    return ort.InferenceSession.create(graph, { executionProviders: isGraphics ? [WEBGPU, "wasm"] : ["wasm"] });
  }
  async whyNoGraphics() {
    const { gpu } = navigator;
    if (!gpu) return "no WebGPU in this browser";
    if (!("Suspending" in WebAssembly)) return "no JSPI in this browser";
    const adapter = await gpu.requestAdapter().catch(() => null);
    return adapter ? "" : "no graphics processor";
  }
};

// src/gathered_rows.ts
async function gathered(columns, places, take) {
  const made = columns.map(({ name, dtype, shape }) => {
    const rowBytes = sizeOf(shape) * DTYPES[dtype].bytes;
    return { name, shape, rowBytes, type: DTYPES[dtype].stored, bytes: new Uint8Array(rowBytes * places.length) };
  });
  for (const table of new Set(places.map((place) => place.table))) {
    const here = places.flatMap((place, i) => place.table === table ? [i] : []);
    const taken = await take(table, here.map((i) => places[i].row));
    for (const { name, rowBytes, bytes } of made) {
      here.forEach((i, at) => bytes.set(taken[name].bytes.subarray(at * rowBytes, (at + 1) * rowBytes), i * rowBytes));
    }
  }
  return Object.fromEntries(made.map(({ name, type, shape, bytes }) => [name, { type, shape: [places.length, ...shape], bytes }]));
}
function cut(columns, whole3, rows) {
  return Object.fromEntries(columns.map(({ name, dtype, shape }) => {
    const rowBytes = sizeOf(shape) * DTYPES[dtype].bytes, bytes = new Uint8Array(rowBytes * rows.length);
    for (let i = 0; i < rows.length; i++) bytes.set(whole3[name].subarray(rows[i] * rowBytes, (rows[i] + 1) * rowBytes), i * rowBytes);
    return [name, { type: DTYPES[dtype].stored, shape: [rows.length, ...shape], bytes }];
  }));
}

// src/web/kept_rows.ts
var PART_BYTES = 1 << 20;
var MEMORY_BYTES = 128 << 20;
var ROWS_MAX = 2 ** 31;
var DELETED = "deleted";
var BrowserRows = class {
  /** Rows do not move. `forget` begins with a fresh count of what was seen. */
  place = "this browser";
  database;
  /** Name of a text that goes with the rows -> the deletion that was the last one when it was recalled. */
  recalled = /* @__PURE__ */ new Map();
  /** `door`: the origin of the cluster's door. Each door has rows and accounts of its own. */
  constructor(door) {
    this.database = door === globalThis.location?.origin ? "shoal-rows" : `shoal-rows ${door}`;
  }
  async open(columns) {
    const rows = new RowsOfBrowser(this.database, columns);
    await rows.look();
    return rows;
  }
  /** The number of rows of this form that are here. */
  async count(columns) {
    const form = formOf(columns);
    return (await partsOf(this.database, form)).reduce((sum, { count }) => sum + count, 0);
  }
  /** Keep all rows of a table. They are durable when this resolves. Fails, and keeps none, if one of them does not fit. */
  async add(columns, table) {
    const form = formOf(columns);
    const rowBytes = columns.reduce((sum, { dtype, shape }) => sum + DTYPES[dtype].bytes * sizeOf(shape), 0);
    const step = Math.max(1, Math.floor(PART_BYTES / rowBytes));
    if (await this.count(columns) + table.count > ROWS_MAX) throw new Error(`a device has at most ${ROWS_MAX} rows`);
    const parts3 = [];
    for (let low = 0; low < table.count; low += step) {
      const count = Math.min(step, table.count - low);
      const rows = table.take(Array.from({ length: count }, (_, i) => low + i));
      parts3.push({ count, bytes: Object.fromEntries(columns.map(({ name }) => [name, rows[name].bytes])) });
    }
    await write(this.database, ["parts", "bytes"], (store2) => {
      for (const { count, bytes } of parts3) {
        const asked2 = store2("parts").add({ form, count });
        asked2.onsuccess = () => void store2("bytes").put(bytes, asked2.result);
      }
    });
    return table.count;
  }
  async recall(name) {
    let deleted = null;
    const text = await read2(this.database, "notes", (notes) => {
      deleted = notes.get(DELETED);
      return notes.get(name);
    });
    if (goesWithRows(name)) this.recalled.set(name, deleted.result);
    return text ?? null;
  }
  /** Fails for a text that goes with the rows if they were deleted since it was recalled: another tab of this browser deletes
   * them too, and knows nothing of what this one has in memory. */
  async keep(name, text) {
    await write(this.database, ["notes"], (store2) => {
      const notes = store2("notes");
      if (!text || !this.recalled.has(name)) return void notes.put(text, name);
      const deleted = notes.get(DELETED);
      deleted.onsuccess = () => {
        if (deleted.result === this.recalled.get(name)) notes.put(text, name);
        else notes.transaction.abort();
      };
    });
  }
  /** Delete all rows, and the own parts of models that were made of them. The accounts of private jobs stay: what left this
   * device has left it. */
  async forget() {
    await write(this.database, ["parts", "bytes", "notes"], (store2) => {
      store2("parts").clear();
      store2("bytes").clear();
      store2("notes").delete(SEEN);
      store2("notes").delete(IDBKeyRange.bound(OWN, `${OWN}￿`));
      store2("notes").put(JSON.stringify({ deletion: crypto.randomUUID() }), DELETED);
    });
  }
};
function goesWithRows(name) {
  return name === SEEN || name.startsWith(OWN);
}
var RowsOfBrowser = class {
  constructor(database, columns) {
    this.database = database;
    this.columns = columns;
    this.form = formOf(columns);
    this.most = Math.max(2, Math.floor(MEMORY_BYTES / PART_BYTES));
  }
  database;
  columns;
  parts = [];
  memory = /* @__PURE__ */ new Map();
  most;
  form;
  async look() {
    let start = 0;
    this.parts = (await partsOf(this.database, this.form)).map(({ key, count }) => ({ key, count, start: (start += count) - count }));
    return start;
  }
  take(rows) {
    const places = Array.from(rows, (row) => {
      const part2 = this.parts.find(({ start, count }) => row < start + count);
      if (!part2) throw new Error("this device has fewer rows than were asked for");
      return { table: part2.key, row: row - part2.start };
    });
    return gathered(this.columns, places, async (key, wanted) => cut(this.columns, await this.bytes(key), wanted));
  }
  async bytes(key) {
    const known = this.memory.get(key) ?? await read2(this.database, "bytes", (bytes) => bytes.get(key));
    if (!known) throw new Error("rows of this device were deleted");
    this.memory.delete(key);
    this.memory.set(key, known);
    for (const oldest of [...this.memory.keys()].slice(0, -this.most)) this.memory.delete(oldest);
    return known;
  }
};
function formOf(columns) {
  return JSON.stringify(columnsFromPlain(columns).map(({ name, dtype, shape, classes }) => [name, dtype, shape, classes]));
}
async function partsOf(database, form) {
  let keys = null;
  const parts3 = await read2(database, "parts", (store2) => {
    keys = store2.getAllKeys();
    return store2.getAll();
  });
  return parts3.map((part2, i) => ({ ...part2, key: keys.result[i] })).filter((part2) => part2.form === form);
}
function opened2(name) {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open(name, 1);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("parts", { autoIncrement: true });
      opening.result.createObjectStore("bytes");
      opening.result.createObjectStore("notes");
    };
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => resolve(opening.result);
  });
}
async function read2(name, from, ask) {
  const database = await opened2(name);
  try {
    return await new Promise((resolve, reject) => {
      const asked2 = ask(database.transaction(from, "readonly").objectStore(from));
      asked2.onsuccess = () => resolve(asked2.result);
      asked2.onerror = () => reject(asked2.error);
    });
  } finally {
    database.close();
  }
}
async function write(name, to, act) {
  const database = await opened2(name);
  try {
    await new Promise((resolve, reject) => {
      const transaction = database.transaction(to, "readwrite", { durability: "strict" });
      transaction.oncomplete = () => resolve();
      transaction.onerror = transaction.onabort = () => reject(transaction.error ?? new Error("this browser kept nothing"));
      act((store2) => transaction.objectStore(store2));
    });
  } finally {
    database.close();
  }
}

// src/web/key_store.ts
var BrowserKeys = class {
  isExtractable = false;
  name;
  constructor(door) {
    this.name = door === globalThis.location?.origin ? "identity" : `identity ${door}`;
  }
  async load() {
    return await store("readonly", (kept) => kept.get(this.name)) ?? null;
  }
  async save(identity) {
    await store("readwrite", (kept) => kept.put(identity, this.name));
  }
  async forget() {
    await store("readwrite", (kept) => kept.delete(this.name));
  }
};
function store(mode, act) {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("shoal", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("kept");
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const asked2 = act(opening.result.transaction("kept", mode).objectStore("kept"));
      asked2.onsuccess = () => resolve(asked2.result);
      asked2.onerror = () => reject(asked2.error);
    };
  });
}

// src/row_tables.ts
var FIELDS_MAX = 1 << 16;
var LINE_MAX_CHARS = 1 << 20;
var LINES_MAX = 1 << 22;
var ARRAYS_MAX_BYTES = 1 << 30;
var END_MAX_BYTES = 22 + 65535;
var TRUTHS = { "0": 0, "1": 1, false: 0, true: 1 };
var BROKEN = "this is not a complete archive of arrays";
var NUMPY = {
  "|u1": ["uint8", (bytes) => new Uint8Array(bytes)],
  "|i1": ["int8", (bytes) => new Int8Array(bytes)],
  "|b1": ["bool", (bytes) => new Uint8Array(bytes).map((each) => Number(each !== 0))],
  "<i2": ["int16", (bytes) => new Int16Array(bytes)],
  "<u2": ["uint16", (bytes) => new Uint16Array(bytes)],
  "<i4": ["int32", (bytes) => new Int32Array(bytes)],
  "<u4": ["uint32", (bytes) => new Uint32Array(bytes)],
  "<i8": ["int64", (bytes) => new BigInt64Array(bytes)],
  "<u8": ["uint64", (bytes) => new BigUint64Array(bytes)],
  "<f4": ["float32", (bytes) => new Float32Array(bytes)],
  "<f8": ["float64", (bytes) => new Float64Array(bytes)]
};
async function readTable(name, bytes, columns) {
  return /\.npz$/i.test(name) ? readNpz(bytes, columns) : readCsv(bytes, columns);
}
function tableOf(values, columns) {
  const whole3 = {}, lengths = /* @__PURE__ */ new Set();
  for (const column of columns) {
    const given = values[column.name];
    if (!given) throw new Error(`column ${column.name} is missing`);
    whole3[column.name] = fitted(given, column).bytes;
    lengths.add(given.shape[0]);
  }
  const [count] = lengths;
  if (lengths.size !== 1) throw new Error(`its columns have ${[...lengths].sort((a, b) => a - b).join(" and ")} rows`);
  return { count, take: (rows) => cut(columns, whole3, rows) };
}
function rowOf(texts, columns) {
  const quoted = (parts3) => parts3.map((part2) => `"${part2.replaceAll('"', '""')}"`).join(",");
  const lines = [quoted(columns.map(({ name }) => name)), quoted(columns.map(({ name }) => texts[name] ?? ""))];
  return readCsv(new TextEncoder().encode(`${lines.join("\n")}
`), columns);
}
async function readNpz(file, columns) {
  const members = membersOf(file);
  const arrays = /* @__PURE__ */ new Map();
  const total = columns.reduce((sum, { name }) => sum + (members.get(`${name}.npy`)?.size ?? 0), 0);
  if (total > ARRAYS_MAX_BYTES) throw new Error(`its arrays have more than ${ARRAYS_MAX_BYTES} bytes`);
  for (const column of columns) {
    const member = members.get(`${column.name}.npy`);
    if (!member) throw new Error(`column ${column.name} is missing`);
    const array = arrayOf(await member.unpack(), column);
    checkForm(array, column);
    arrays.set(column.name, array);
  }
  const lengths = [...new Set([...arrays.values()].map(({ shape }) => shape[0]))].sort((a, b) => a - b);
  if (lengths.length !== 1) throw new Error(`its columns have ${lengths.join(" and ")} rows`);
  return {
    count: lengths[0],
    take: (rows) => Object.fromEntries(columns.map((column) => [column.name, fitted(gathered2(arrays.get(column.name), rows), column)]))
  };
}
function gathered2({ dtype, shape, itemBytes, read: read3, bytes }, rows) {
  const rowBytes = sizeOf(shape.slice(1)) * itemBytes;
  const taken = new Uint8Array(rowBytes * rows.length);
  for (let i = 0; i < rows.length; i++) taken.set(bytes.subarray(rows[i] * rowBytes, (rows[i] + 1) * rowBytes), i * rowBytes);
  return { dtype, shape: [rows.length, ...shape.slice(1)], data: read3(taken.buffer) };
}
function membersOf(file) {
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  let end = file.length - 22;
  const least = Math.max(0, file.length - END_MAX_BYTES);
  while (end >= least && view.getUint32(end, true) !== 101010256) end -= 1;
  if (end < least) throw new Error(BROKEN);
  const found = /* @__PURE__ */ new Map();
  try {
    let at = view.getUint32(end + 16, true);
    for (let left = view.getUint16(end + 10, true); left > 0; left--) {
      if (view.getUint32(at, true) !== 33639248) throw new Error(BROKEN);
      const [method, packed2, size] = [view.getUint16(at + 10, true), view.getUint32(at + 20, true), view.getUint32(at + 24, true)];
      const [name, extra, comment] = [28, 30, 32].map((place) => view.getUint16(at + place, true));
      const header = view.getUint32(at + 42, true);
      const called = new TextDecoder().decode(file.subarray(at + 46, at + 46 + name));
      const from = header + 30 + view.getUint16(header + 26, true) + view.getUint16(header + 28, true);
      found.set(called, { size, unpack: () => unpacked2(file.subarray(from, from + packed2), method, size) });
      at += 46 + name + extra + comment;
    }
  } catch {
    throw new Error(BROKEN);
  }
  return found;
}
async function unpacked2(packed2, method, size) {
  if (method === 0 && packed2.length === size) return packed2;
  if (method !== 8) throw new Error(BROKEN);
  const whole3 = new Uint8Array(size);
  let filled = 0;
  try {
    const reader = new Blob([packed2]).stream().pipeThrough(new DecompressionStream("deflate-raw")).getReader();
    for (let part2 = await reader.read(); !part2.done; part2 = await reader.read()) {
      whole3.set(part2.value, filled);
      filled += part2.value.length;
    }
  } catch {
    throw new Error(BROKEN);
  }
  if (filled !== size) throw new Error(BROKEN);
  return whole3;
}
function arrayOf(file, { name }) {
  const isLong = file[6] > 1, start = isLong ? 12 : 10;
  if (file.length < start || new TextDecoder("latin1").decode(file.subarray(1, 6)) !== "NUMPY") throw new Error(BROKEN);
  const view = new DataView(file.buffer, file.byteOffset, file.byteLength);
  const length = isLong ? view.getUint32(8, true) : view.getUint16(8, true);
  const header = new TextDecoder("latin1").decode(file.subarray(start, start + length));
  const [, kind] = /'descr':\s*'([^']*)'/.exec(header) ?? [];
  const [, sides] = /'shape':\s*\(([\d,\s]*)\)/.exec(header) ?? [];
  const shape = sides?.split(",").map((side) => side.trim()).filter(Boolean).map(Number);
  if (!kind || !shape?.length || !(kind in NUMPY)) throw new Error(`column ${name} is not an array with a value per row`);
  if (/'fortran_order':\s*True/.test(header) && shape.length > 1) throw new Error(`column ${name} is stored by columns: save it with numpy.ascontiguousarray`);
  const [dtype, read3] = NUMPY[kind];
  const itemBytes = Number(kind.slice(2)), bytes = file.subarray(start + length);
  if (bytes.length !== sizeOf(shape) * itemBytes) throw new Error(BROKEN);
  return { dtype, shape, itemBytes, read: read3, bytes };
}
function readCsv(file, columns) {
  let text, breaks = 0;
  for (let at = 0; at < file.length; at++) breaks += Number(file[at] === 10 || file[at] === 13);
  if (breaks > 2 * LINES_MAX) throw new Error(`it has more than ${LINES_MAX} lines: write .npz`);
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(file);
  } catch {
    throw new Error("it is not text in UTF-8");
  }
  const lines = text.split(/\r\n|\n|\r/);
  const tail = lines.pop() ?? "";
  const [first, ...body] = lines.length ? lines : [tail];
  const names = fieldsOf(first ?? "", 1);
  if (new Set(names).size < names.length) throw new Error("two columns of its first line have the same name");
  const rows = body.map((line, i) => ({ line, number: i + 2 })).filter(({ line }) => line !== "");
  if (lines.length && tail && isWhole(tail, names.length)) rows.push({ line: tail, number: lines.length + 1 });
  const places = columns.map((column) => fieldsNamed(column).map((field) => {
    const place = names.indexOf(field);
    if (place < 0) throw new Error(`its first line does not name ${field}`);
    return place;
  }));
  return {
    count: rows.length,
    take: (wanted) => {
      const texts = Array.from(wanted, (row) => {
        const fields2 = fieldsOf(rows[row].line, rows[row].number);
        if (fields2.length !== names.length) throw new Error(`line ${rows[row].number}: ${fields2.length} values for ${names.length} columns`);
        return fields2;
      });
      return Object.fromEntries(columns.map((column, i) => {
        const data = texts.flatMap((fields2, row) => places[i].map((place) => parsed2(fields2[place], column, wanted[row] + 1)));
        const dtype = column.dtype === "float32" ? "float64" : "int64";
        return [column.name, fitted({ dtype, shape: [wanted.length, ...column.shape], data }, column)];
      }));
    }
  };
}
function fieldsNamed(column) {
  const size = sizeOf(column.shape);
  if (size > FIELDS_MAX) throw new Error(`column ${column.name} has ${size} values per row; a CSV file takes ${FIELDS_MAX}: write .npz`);
  return column.shape.length ? Array.from({ length: size }, (_, i) => `${column.name}.${i}`) : [column.name];
}
function isWhole(line, fields2) {
  try {
    return fieldsOf(line, 0).length === fields2;
  } catch {
    return false;
  }
}
function fieldsOf(line, number2) {
  if (line.length > LINE_MAX_CHARS) throw new Error(`line ${number2} is too long`);
  if (!line.includes('"')) return line.split(",");
  const fields2 = [];
  const quoted = /"((?:[^"]|"")*)"(?=,|$)/y, plain = /[^,]*/y;
  for (let at = 0; at <= line.length; ) {
    const isQuoted = line[at] === '"', form = isQuoted ? quoted : plain;
    form.lastIndex = at;
    const found = form.exec(line);
    if (!found) throw new Error(`line ${number2}: a quoted value does not end`);
    fields2.push(isQuoted ? found[1].replaceAll('""', '"') : found[0]);
    at += found[0].length + 1;
  }
  return fields2;
}
function parsed2(text, column, row) {
  const { name, dtype, classes } = column;
  const found = dtype === "bool" ? TRUTHS[text.trim().toLowerCase()] : dtype === "float32" ? fraction(text.trim()) : classes.length ? classOf(text, column) : whole2(text.trim());
  if (found === void 0) throw new Error(`row ${row}: column ${name} is not ${described({ dtype, shape: [] })}`);
  return found;
}
function whole2(text) {
  const [, sign, digits] = /^([+-]?)0*(\d{1,19})$/.exec(text) ?? [];
  if (!digits) return void 0;
  const found = BigInt(sign === "-" ? `-${digits}` : digits);
  return BigInt.asIntN(64, found) === found ? found : void 0;
}
function fraction(text) {
  if (/^[+-]?(inf(inity)?|nan)$/i.test(text)) return NaN;
  return /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text) ? Number(text) : void 0;
}

// src/web/pictures.ts
var CHANNELS = [1, 3, 4];
var PICTURE_MAX_BYTES = 64 << 20;
var PIXELS_MAX = 64e6;
function pictureForm(columns) {
  const pictures = columns.filter(({ dtype, shape }) => dtype === "uint8" && (shape.length === 2 || shape.length === 3));
  const labels = columns.filter(({ dtype, shape }) => dtype.includes("int") && !shape.length);
  if (pictures.length !== 1 || columns.length > 2 || labels.length !== columns.length - 1) return null;
  const [column] = pictures, [first, second, third] = [...column.shape, 1];
  if (CHANNELS.includes(third)) return { column, label: labels[0] ?? null, height: first, width: second, channels: third, isFirst: false };
  return CHANNELS.includes(first) ? { column, label: labels[0] ?? null, height: second, width: third, channels: first, isFirst: true } : null;
}
async function readPicture(file, form, label) {
  if (file.size > PICTURE_MAX_BYTES) throw new Error(`the picture has more than ${PICTURE_MAX_BYTES >> 20} MB`);
  const kept = await fittedPicture(file, form);
  const { column, channels, isFirst } = form;
  const values = { [column.name]: { dtype: "uint8", shape: [1, ...column.shape], data: pixelsOf(kept, channels, isFirst) } };
  if (form.label) values[form.label.name] = { dtype: "int64", shape: [1], data: [classOf(label, form.label)] };
  return { table: tableOf(values, form.label ? [column, form.label] : [column]), kept };
}
async function fittedPicture(file, { width, height, channels }) {
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", imageOrientation: "from-image" }).catch(() => {
    throw new Error("this is not a picture that this browser reads");
  });
  try {
    if (bitmap.width * bitmap.height > PIXELS_MAX) throw new Error(`the picture has more than ${PIXELS_MAX / 1e6} million pixels`);
    const canvas = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
    canvas.imageSmoothingQuality = "high";
    if (channels < 4) {
      canvas.fillStyle = "white";
      canvas.fillRect(0, 0, width, height);
    }
    const scale = Math.min(bitmap.width / width, bitmap.height / height), [w, h] = [width * scale, height * scale];
    canvas.drawImage(bitmap, (bitmap.width - w) / 2, (bitmap.height - h) / 2, w, h, 0, 0, width, height);
    return { width, height, pixels: canvas.getImageData(0, 0, width, height).data };
  } finally {
    bitmap.close();
  }
}
function pixelsOf({ width, height, pixels }, channels, isFirst) {
  const size = width * height, made = new Uint8Array(size * channels);
  for (let i = 0; i < size; i++) {
    const [red, green, blue] = pixels.subarray(4 * i, 4 * i + 3);
    if (channels === 1) made[i] = red * 19595 + green * 38470 + blue * 7471 + 32768 >> 16;
    else for (let channel = 0; channel < channels; channel++) made[isFirst ? channel * size + i : i * channels + channel] = pixels[4 * i + channel];
  }
  return made;
}

// src/web/picked_rows.ts
var FILE_MAX_BYTES2 = 256 << 20;
var SHOWN_MAX = 12;
async function addFiles(rows, plain, files, label) {
  const columns = columnsFromPlain(plain), form = pictureForm(columns);
  const added2 = { rows: 0, kept: [], problems: [] };
  for (const file of files) {
    try {
      if (/\.(npz|csv)$/i.test(file.name)) {
        if (file.size > FILE_MAX_BYTES2) throw new Error(`it has more than ${FILE_MAX_BYTES2 >> 20} MB`);
        added2.rows += await rows.add(columns, await readTable(file.name, new Uint8Array(await file.arrayBuffer()), columns));
      } else if (form) {
        const { table, kept } = await readPicture(file, form, label);
        added2.rows += await rows.add(columns, table);
        if (added2.kept.length < SHOWN_MAX) added2.kept.push(kept);
      } else throw new Error(say("own.no-pictures"));
    } catch (error) {
      added2.problems.push(`${file.name}: ${error.message}`);
    }
  }
  return added2;
}
async function addRow(rows, plain, texts) {
  const columns = columnsFromPlain(plain);
  try {
    return { rows: await rows.add(columns, rowOf(texts, columns)), kept: [], problems: [] };
  } catch (error) {
    return { rows: 0, kept: [], problems: [error.message] };
  }
}

// src/web/index.ts
function webParts(origin) {
  const door = new WebDoor(origin);
  const { origin: at } = door;
  return { door, keys: new BrowserKeys(at), blobs: new CacheBlobs(), engine: new WebEngine(engineOf(at)), rows: new BrowserRows(at) };
}

// src/tab.ts
var parts2 = webParts(location.origin);
var device = new Device(parts2);
var tell = (told2) => postMessage(told2);
device.on("state", (shown) => tell({ shown }));
device.on("record", ({ kind, reason }) => console.info(`${kind}: ${reason}`));
async function hear(said) {
  switch (said.say) {
    case "look":
      return device.look(said.secret);
    case "join":
      return device.join(said.secret, said.wanted, said.about);
    case "start":
      return device.start(said.about);
    case "take":
      return device.take();
    case "later":
      return device.later(said.megabytes);
    case "pause":
      return device.pause(said.why);
    case "graphics":
      return device.graphics(said.isWanted);
    case "add-files":
      return added(await addFiles(parts2.rows, said.columns, said.files, said.label));
    case "add-row":
      return added(await addRow(parts2.rows, said.columns, said.texts));
    case "forget-rows":
      return device.forgetRows();
    case "stop":
      return device.stop();
    case "forget":
      return device.forget();
  }
}
async function added(found) {
  tell({ added: found });
  if (found.rows) await device.recount();
}
addEventListener("message", ({ data }) => void hear(data));
