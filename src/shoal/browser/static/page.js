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
  const language2 = globalThis.navigator?.language?.slice(0, 2) ?? "en";
  const text = LANGUAGES[language2]?.[word] ?? EN[word];
  return text.replace(/\{(\d)\}/g, (_, i) => String(values[Number(i)]));
}
function isWord(word) {
  return word in EN;
}
function language() {
  const wanted = globalThis.navigator?.language?.slice(0, 2) ?? "en";
  return wanted in LANGUAGES ? wanted : "en";
}
function megabytes(bytes) {
  const mb = bytes / 1e6;
  return mb >= 10 ? mb.toFixed(0) : mb.toFixed(1);
}

// src/rest.ts
var BATTERY_LEAST = 0.3;
function whyRest(around2, allowed) {
  if (around2.isHidden && !allowed.hidden) return say("why.hidden");
  if (around2.isMetered && !allowed.metered) return say("why.metered");
  const isLow = around2.battery !== null && !around2.isCharging && around2.battery < BATTERY_LEAST;
  if (isLow && !allowed.battery) return say("why.battery", BATTERY_LEAST * 100);
  return "";
}

// src/leaving.ts
function leaving({ shares_labels, epsilon, delta, participations, keeps_part }, device) {
  const isPrivate = epsilon > 0;
  return [
    isPrivate ? say("leaves.change-private", epsilon, delta, participations) : say("leaves.change"),
    say("leaves.held"),
    isPrivate ? say("leaves.lesson-private") : say("leaves.lesson"),
    ...isPrivate ? [say("leaves.account")] : [say("leaves.fresh")],
    ...shares_labels && !isPrivate ? [say("leaves.labels")] : [],
    say("leaves.device", device),
    say("leaves.failure"),
    ...keeps_part ? [say("leaves.stays")] : [],
    say("leaves.never")
  ];
}

// src/raw_columns.ts
var COLUMNS_MAX = 32;
var NAME_MAX_CHARS = 64;
var DIMENSIONS_MAX = 8;
var SIZE_MAX = 1 << 24;
var ROW_MAX_BYTES = 16 << 20;
var CLASSES_MAX = 1e3;
var CLASS_MAX_CHARS = 128;
var whole = (bits, isSigned = true) => isSigned ? [-(1n << BigInt(bits - 1)), (1n << BigInt(bits - 1)) - 1n] : [0n, (1n << BigInt(bits)) - 1n];
var DTYPES = {
  uint8: { stored: "U8", bytes: 1, make: (count) => new Uint8Array(count), range: whole(8, false) },
  int8: { stored: "I8", bytes: 1, make: (count) => new Int8Array(count), range: whole(8) },
  int16: { stored: "I16", bytes: 2, make: (count) => new Int16Array(count), range: whole(16) },
  int32: { stored: "I32", bytes: 4, make: (count) => new Int32Array(count), range: whole(32) },
  int64: { stored: "I64", bytes: 8, make: (count) => new BigInt64Array(count), range: whole(64) },
  float32: { stored: "F32", bytes: 4, make: (count) => new Float32Array(count), range: null },
  bool: { stored: "BOOL", bytes: 1, make: (count) => new Uint8Array(count), range: [0n, 1n] }
};
var sizeOf = (shape) => shape.reduce((product, side) => product * side, 1);
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

// src/web/pictures.ts
var CHANNELS = [1, 3, 4];
var PICTURE_MAX_BYTES = 64 << 20;
function pictureForm(columns) {
  const pictures = columns.filter(({ dtype, shape }) => dtype === "uint8" && (shape.length === 2 || shape.length === 3));
  const labels = columns.filter(({ dtype, shape }) => dtype.includes("int") && !shape.length);
  if (pictures.length !== 1 || columns.length > 2 || labels.length !== columns.length - 1) return null;
  const [column] = pictures, [first, second, third] = [...column.shape, 1];
  if (CHANNELS.includes(third)) return { column, label: labels[0] ?? null, height: first, width: second, channels: third, isFirst: false };
  return CHANNELS.includes(first) ? { column, label: labels[0] ?? null, height: second, width: third, channels: first, isFirst: true } : null;
}

// src/page_rows.ts
var at = (id) => document.getElementById(id);
var made = (name, fields) => Object.assign(document.createElement(name), fields);
var FIELDS_MAX = 12;
var shownFor = "";
function wanting({ offer, about: about2 }) {
  if (offer) return offer.own ? offer : null;
  return about2?.jobs.find(({ own }) => own) ?? null;
}
function drawRows(now, place, device, tell2) {
  const wanted = wanting(now), panel = at("rows");
  panel.hidden = !wanted;
  if (!wanted?.own) return;
  if (panel.parentElement !== place) place.append(panel);
  const held = now.rows[wanted.job] ?? 0;
  at("rows-held").textContent = held ? counted(held, "own.held-one", "own.held") : say("own.none");
  at("forget-rows").hidden = !held;
  const all = now.offer ? [now.offer] : now.about.jobs;
  const key = JSON.stringify(all.map(({ job, own }) => [job, own]));
  if (shownFor === key) return;
  shownFor = key;
  at("rows-lead").textContent = say("own.lead", wanted.name);
  at("leaves").replaceChildren(...all.flatMap(({ name, own }) => own ? listed(say("own.leaves", name), leaving(own, device)) : []));
  const columns = readable(wanted.own);
  drawFiles(columns, wanted.own.columns, tell2);
  drawForm(columns, wanted.own.columns, tell2);
  at("forget-rows").onclick = () => tell2({ say: "forget-rows" });
}
function listed(title, lines) {
  const list2 = made("ul", {});
  list2.append(...lines.map((textContent) => made("li", { textContent })));
  return [made("h3", { textContent: title }), list2];
}
function readable({ columns }) {
  try {
    return columnsFromPlain(columns);
  } catch {
    return [];
  }
}
function drawFiles(columns, plain, tell2) {
  const pictures = pictureForm(columns), files = at("row-files");
  at("rows-tables").textContent = say("own.tables", columns.map((column) => `${column.name} (${described(column)})`).join(", "));
  at("rows-pictures").hidden = !pictures;
  at("rows-pictures").textContent = pictures ? say("own.pictures", pictures.width, pictures.height) : "";
  files.accept = [".npz", ".csv", ...pictures ? ["image/*"] : []].join(",");
  const label = pictures?.label ?? null, place = at("row-class");
  place.replaceChildren();
  if (label) place.append(made("span", { textContent: say(label.classes.length ? "own.class" : "own.class-number") }), field(label, "class-of-pictures"));
  files.onchange = () => {
    const chosen = [...files.files ?? []];
    const text = document.getElementById("class-of-pictures");
    if (chosen.length) tell2({ say: "add-files", columns: plain, files: chosen, label: text?.value ?? "" });
    files.value = "";
  };
}
function drawForm(columns, plain, tell2) {
  const form = at("row-form");
  form.hidden = !columns.length || columns.length > FIELDS_MAX || columns.some(({ shape }) => shape.length > 0);
  form.replaceChildren();
  if (form.hidden) return;
  const fields = columns.map((column, i) => ({ column, input: field(column, `row-field-${i}`) }));
  for (const { column, input } of fields) {
    const line = made("label", {});
    line.append(made("span", { textContent: column.name }), input);
    form.append(line);
  }
  form.append(made("button", { type: "submit", textContent: say("own.add-row") }));
  form.onsubmit = (event) => {
    event.preventDefault();
    tell2({ say: "add-row", columns: plain, texts: Object.fromEntries(fields.map(({ column, input }) => [column.name, input.value])) });
  };
}
function field({ dtype, classes }, id) {
  if (!classes.length && dtype !== "bool") {
    return made("input", { id, required: true, inputMode: dtype === "float32" ? "decimal" : "numeric", autocomplete: "off" });
  }
  const select = made("select", { id });
  const choices = classes.length ? classes.map((name) => [name, name]) : [["1", say("own.yes")], ["0", say("own.no")]];
  select.append(...choices.map(([value, textContent]) => made("option", { value, textContent })));
  return select;
}
function counted(count, one, many) {
  return count === 1 ? say(one) : say(many, count.toLocaleString(language()));
}
function tellAdded({ rows, kept, problems }) {
  at("rows-told").textContent = [...rows ? [counted(rows, "own.added-one", "own.added")] : [], ...problems].join("\n");
  at("rows-kept").replaceChildren(...kept.length ? [made("p", { textContent: say("own.kept") })] : [], ...kept.map(picture));
}
function picture({ width, height, pixels }) {
  const canvas = made("canvas", { width, height });
  canvas.getContext("2d").putImageData(new ImageData(pixels, width, height), 0, 0);
  return canvas;
}

// src/page.ts
var at2 = (id) => document.getElementById(id);
var worker = null;
var tell = (said) => worker?.postMessage(said);
var LATER_MB = 200;
var PROGRAM_BYTES = 4e6;
var secret = new URLSearchParams(location.hash.slice(1)).get("join") ?? "";
history.replaceState(null, "", location.pathname);
var shown = null;
var battery = null;
var lock = null;
var isScreenWanted = false;
var settled = Promise.resolve();
var isOn = false;
var letGo = null;
function write() {
  document.documentElement.lang = language();
  document.title = `${say("title")} · Shoal`;
  for (const each of document.querySelectorAll("[data-word]")) {
    const word = each.dataset.word;
    if (isWord(word)) each.textContent = say(word);
  }
  at2("progress").ariaLabel = say("progress");
  at2("later-label").textContent = say("later.label", LATER_MB);
}
function asked(now) {
  const { about: about2 } = now;
  const cluster = about2?.cluster || now.cluster;
  const lead = about2?.operator ? say("lead.operator", cluster, about2.operator) : cluster ? say("lead.cluster", cluster) : say("lead.unknown");
  const jobs = !about2 ? [] : about2.jobs.length ? about2.jobs.map(moves) : [say("job.none")];
  return [lead, ...about2?.purpose ? [say("purpose", about2.purpose)] : [], ...jobs];
}
function moves({ name, once_bytes, update_bytes, minute_bytes }) {
  if (!(once_bytes >= 0)) return say("job.unknown", name);
  const once = megabytes(once_bytes + PROGRAM_BYTES);
  return minute_bytes ? say("job.minute", name, once, megabytes(minute_bytes)) : say("job.update", name, once, megabytes(update_bytes));
}
function list(id, lines) {
  at2(id).replaceChildren(...lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
}
function hire() {
  worker = new Worker("/tab.js", { type: "module" });
  worker.onmessage = ({ data }) => {
    const told = data;
    if ("shown" in told) draw(told.shown);
    else tellAdded(told.added);
  };
  worker.onerror = ({ message }) => status("state.broken", message || say("why.broken"));
  tell({ say: "look", secret });
}
function status(state, reason) {
  document.body.dataset.state = state.slice("state.".length);
  at2("ask").hidden = true;
  at2("run").hidden = false;
  for (const id of ["stop", "go-on", "figures", "progress", "more"]) at2(id).hidden = true;
  at2("state").textContent = say(state);
  at2("reason").textContent = reason;
}
function draw(now) {
  shown = now;
  const isKnown = Boolean(now.node);
  const isAsked = now.state === "new" || now.state === "refused";
  document.body.dataset.state = now.state;
  document.body.dataset.files = String(now.files_bytes);
  at2("ask").hidden = !isAsked;
  at2("run").hidden = isAsked;
  const isVoid = now.state === "refused" && !isKnown && !now.about;
  at2("agree").hidden = isVoid || !(secret || isKnown);
  at2("no-link").hidden = Boolean(secret || isKnown);
  at2("agree").textContent = isKnown && !(secret && now.state === "refused") ? say("again", now.node) : say("agree");
  at2("terms").hidden = at2("agree").hidden;
  list("asked", asked(now));
  at2("offer").hidden = now.state !== "asking";
  list("offered", now.offer ? [moves(now.offer)] : []);
  for (const id of ["figures", "progress", "more"]) at2(id).hidden = now.state === "asking";
  const own = wanting(now);
  at2("sends").hidden = Boolean(own) && (now.about?.jobs ?? []).every((job) => job.own);
  at2("reads").hidden = !own;
  at2("never-reads").hidden = Boolean(own);
  at2("take-job").disabled = Boolean(now.offer?.own) && !(now.rows[now.offer.job] > 0);
  drawRows(now, at2(now.state === "asking" ? "rows-of-offer" : isAsked ? "rows-asked" : "rows-running"), about(), tell);
  if (isAsked && at2("agree").hidden) at2("rows").hidden = true;
  at2("refusal").textContent = isAsked ? now.reason && !navigator.onLine ? say("why.offline") : now.reason : "";
  at2("state").textContent = say(`state.${now.state}`);
  at2("reason").textContent = now.reason;
  at2("reason").ariaLive = now.state === "working" ? "off" : "polite";
  at2("job").textContent = now.job || say("none");
  at2("engine").textContent = now.engine || "…";
  at2("node").textContent = now.node;
  at2("leases").textContent = String(now.leases);
  at2("examples").textContent = now.examples.toLocaleString(language());
  at2("loss").textContent = now.loss === null ? "…" : now.loss.toFixed(3);
  at2("traffic").textContent = `${say("down", (now.down_bytes / 1e6).toFixed(1))}
${say("up", (now.up_bytes / 1e6).toFixed(1))}`;
  at2("progress").max = Math.max(1, now.of);
  at2("progress").value = now.done;
  at2("stop").hidden = now.state === "stopped" || now.state === "asking";
  at2("go-on").hidden = now.state !== "stopped";
  keepScreenOn(now.state === "working" && isOn);
}
function keepScreenOn(wanted) {
  isScreenWanted = wanted;
  settled = settled.then(settleScreen);
}
async function settleScreen() {
  const screen = navigator.wakeLock;
  const held = lock?.released === false ? lock : null;
  if (isScreenWanted && !held && screen && !document.hidden) lock = await screen.request("screen").catch(() => null);
  else if (!isScreenWanted && held) await held.release().catch(() => void 0);
}
function around() {
  const link = navigator.connection;
  return {
    isHidden: document.hidden,
    battery: battery?.level ?? null,
    isCharging: battery?.charging ?? false,
    isMetered: Boolean(link?.saveData || link?.type === "cellular")
  };
}
function look() {
  const allowed = { hidden: isTicked("allow-hidden"), battery: isTicked("allow-battery"), metered: isTicked("allow-metered") };
  tell({ say: "pause", why: whyRest(around(), allowed) });
}
function isTicked(id) {
  return at2(id).checked;
}
function about() {
  const told = navigator.userAgentData;
  const brand = told?.brands.find(({ brand: brand2 }) => !/not.*brand/i.test(brand2));
  if (told && brand) return `${brand.brand} ${brand.version} on ${told.platform || "a computer"}`;
  return /Firefox\/(\d+)/.exec(navigator.userAgent)?.[0].replace("/", " ") ?? (/Safari/.test(navigator.userAgent) ? "Safari" : "a browser");
}
at2("agree").onclick = async () => {
  if (!await hold()) {
    await waitForOther();
    return draw(shown);
  }
  isOn = true;
  tell({ say: "later", megabytes: isTicked("later") ? LATER_MB : 0 });
  look();
  if (secret && (!shown?.node || shown.state === "refused")) tell({ say: "join", secret, wanted: "tab", about: about() });
  else tell({ say: "start", about: about() });
};
at2("stop").onclick = () => {
  isOn = false;
  tell({ say: "stop" });
  release();
};
at2("take-job").onclick = () => tell({ say: "take" });
at2("no-thanks").onclick = () => at2("stop").click();
at2("go-on").onclick = () => at2("agree").click();
at2("forget").onclick = () => {
  tell({ say: "forget" });
  release();
};
for (const id of ["allow-hidden", "allow-battery", "allow-metered"]) at2(id).onchange = look;
at2("want-graphics").onchange = () => tell({ say: "graphics", isWanted: isTicked("want-graphics") });
document.addEventListener("visibilitychange", look);
addEventListener("online", () => {
  if (shown?.state === "new") tell({ say: "look", secret });
});
addEventListener("pagehide", () => tell({ say: "stop" }));
navigator.connection?.addEventListener("change", look);
navigator.getBattery?.().then((found) => {
  battery = found;
  for (const name of ["levelchange", "chargingchange"]) found.addEventListener(name, look);
  look();
}, () => void 0);
write();
at2("where").textContent = location.host;
var LOCK = "shoal";
async function hold() {
  if (letGo) return true;
  return new Promise((held) => {
    void navigator.locks.request(LOCK, { ifAvailable: true }, (lock2) => {
      held(lock2 !== null);
      return lock2 ? new Promise((release2) => letGo = release2) : void 0;
    });
  });
}
function release() {
  letGo?.();
  letGo = null;
}
async function waitForOther() {
  status("state.elsewhere", say("why.elsewhere"));
  await navigator.locks.request(LOCK, () => void 0);
}
async function begin() {
  const { held } = await navigator.locks.query();
  if (held?.some(({ name }) => name === LOCK)) await waitForOther();
  hire();
}
if (window.top === window) void navigator.serviceWorker?.register("/service.js").catch((error) => console.info(`not installable: ${error}`));
void begin();
