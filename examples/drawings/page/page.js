// A page that learns from its visitor's drawings. They lie in this browser's own store; `leaving` says what leaves it.

import { columnsFromPlain, Device, leaving, tableOf, webParts } from "@shoal/worker";

const at = (id) => document.getElementById(id);
/** The line of `shoal token create --browser` is behind this page's #. */
const line = new URL(decodeURIComponent(location.hash.slice(1)));
const secret = new URLSearchParams(line.hash.slice(1)).get("join") ?? "";
const parts = webParts(line.origin);
export const device = new Device(parts);
let job = null;

// Drawing --------------------------------------------------------------------------------------------------------

const paper = at("paper").getContext("2d", { willReadFrequently: true });
let last = null;

function clear() {
  paper.fillStyle = "white";
  paper.fillRect(0, 0, 280, 280);
}

at("paper").onpointerdown = ({ offsetX, offsetY, pointerId }) => {
  at("paper").setPointerCapture(pointerId);
  last = [offsetX, offsetY];
};
at("paper").onpointermove = ({ offsetX, offsetY }) => {
  if (!last) return;
  Object.assign(paper, { lineWidth: 18, lineCap: "round", strokeStyle: "black" });
  paper.beginPath();
  paper.moveTo(...last);
  paper.lineTo(offsetX, offsetY);
  paper.stroke();
  last = [offsetX, offsetY];
};
at("paper").onpointerup = at("paper").onpointercancel = () => (last = null);
at("clear").onclick = clear;
clear();

/** The drawing at the job's size: 0 is paper, 255 is ink. */
function pixels(height, width) {
  const small = new OffscreenCanvas(width, height).getContext("2d");
  small.imageSmoothingQuality = "high";
  small.drawImage(at("paper"), 0, 0, width, height);
  const { data } = small.getImageData(0, 0, width, height);
  return Uint8Array.from({ length: width * height }, (_, i) => 255 - data[4 * i]);
}

async function keep(shape) {
  const columns = columnsFromPlain(job.own.columns);
  const [x, y] = columns, data = pixels(...x.shape);
  if (!data.some(Boolean)) return;
  const values = { [x.name]: { dtype: "uint8", shape: [1, ...x.shape], data }, [y.name]: { dtype: "int64", shape: [1], data: [shape] } };
  await parts.rows.add(columns, tableOf(values, columns));
  clear();
  await device.recount();
}

// Teaching -------------------------------------------------------------------------------------------------------

export const losses = [], known = [];

function draw(now) {
  const held = (job && now.rows[job.job]) || 0;
  at("held").textContent = held ? `${held} drawings are in this browser.` : "No drawings yet.";
  at("teach").disabled = !held || !["new", "asking", "stopped"].includes(now.state);
  at("delete").hidden = !held;
  at("state").textContent = now.state === "new" ? now.reason : `${now.state}: ${now.reason}`;
}

function plot() {
  const curve = at("curve").getContext("2d"), { width, height } = at("curve");
  curve.clearRect(0, 0, width, height);
  for (const [values, name] of [[losses, "--loss"], [known, "--right"]]) {
    const most = name === "--right" ? 1 : Math.max(...values, 0.01);
    Object.assign(curve, { lineWidth: 3, strokeStyle: getComputedStyle(document.documentElement).getPropertyValue(name) });
    curve.beginPath();
    values.forEach((value, i) => curve.lineTo((i / Math.max(1, values.length - 1)) * (width - 8) + 4, height - 4 - (value / most) * (height - 8)));
    curve.stroke();
  }
}

device.on("state", draw);
let leases = 0;
device.on("progress", (now) => {
  if (now.leases === leases) return;
  leases = now.leases;
  if (now.loss !== null) losses.push(now.loss);
  const right = now.fresh_metrics.find(({ name }) => name === "accuracy");
  if (now.fresh && right) known.push(right.sums[0] / right.sums[1]);
  plot();
});

at("teach").onclick = () => {
  const { state, node } = device.now;
  if (state === "asking") device.take();
  else if (node) device.start("A page of drawings");
  else void device.join(secret, "drawings", "A page of drawings");
};
at("delete").onclick = () => device.forgetRows();

const { about, reason } = await device.look(secret);
job = about?.jobs.find(({ own }) => own) ?? null;
if (job) {
  at("about").textContent = `The cluster ${about.cluster} asks you to teach a model: ${job.name}. Your drawings stay in this browser.`;
  at("leaves").append(...leaving(job.own, "a page of drawings").map((textContent) => Object.assign(document.createElement("li"), { textContent })));
  const [, label] = columnsFromPlain(job.own.columns);
  at("shapes").append(...label.classes.map((textContent, i) => Object.assign(document.createElement("button"), { textContent, id: `shape-${i}`, onclick: () => keep(i) })));
} else at("about").textContent = reason || "The cluster has no job that learns from drawings now.";
draw(device.now);
