// Every word that the page shows, so that it can be translated: add a language beside "en", and nothing else. Pure.
// A text has {0}, {1} and so on where values go.

import type { Plain } from "./protobuf.ts";

const EN = {
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
  "refused.other": "The cluster refused: {0}",
};

export type Word = keyof typeof EN;

/** Language -> word -> text. A word that a language lacks is shown in English. */
const LANGUAGES: Record<string, Partial<Record<Word, string>>> = { en: EN };

export function say(word: Word, ...values: (string | number)[]): string {
  const language = globalThis.navigator?.language?.slice(0, 2) ?? "en";
  const text = LANGUAGES[language]?.[word] ?? EN[word];
  return text.replace(/\{(\d)\}/g, (_, i) => String(values[Number(i)]));
}

export function isWord(word: string): word is Word {
  return word in EN;
}

/** The language that the page is in, of those that it has. */
export function language(): string {
  const wanted = globalThis.navigator?.language?.slice(0, 2) ?? "en";
  return wanted in LANGUAGES ? wanted : "en";
}

const REFUSALS: [RegExp, Word][] = [
  [/used up/, "refused.used"],
  [/token has expired/, "refused.expired"],
  [/token is unknown|not a token/, "refused.unknown"],
  [/use the identity of/, "refused.twice"],
  [/revoked/, "refused.out"],
  [/certificate/, "refused.old"],
];

/** What a visitor reads of a refusal, which the manager words for operators. */
export function refusal(reason: string): string {
  const told = REFUSALS.find(([pattern]) => pattern.test(reason));
  return told ? say(told[1]) : say("refused.other", reason);
}

/** What a person reads of a worker: short, and one line on a phone, for it changes with every lease.
 *
 * `reason`: what the worker says of itself, where there is nothing better. `work`: the lease that it holds. */
export function inWords(phase: string, reason: string, work: Plain | null): string {
  if (phase === "training" && work) return say(work.batches.length === 1 ? "why.batch" : "why.batches", work.batches.length, work.epoch + 1);
  if (phase === "evaluating" && work) return say("why.evaluating", work.version);
  if (phase === "waiting" && reason.startsWith("the update was sent")) return say("why.sent");
  return reason;
}

export function megabytes(bytes: number): string {
  const mb = bytes / 1e6;
  return mb >= 10 ? mb.toFixed(0) : mb.toFixed(1);
}
