// One mark per activity, everywhere the same: in tables, drawings, lanes and the terminal. Colour only repeats the shape.
"use strict";
((S) => {
  const { html } = htmPreact;

  /** Activity -> its word and the custom property that colours it. The order is that of the legend. */
  const MARKS = {
    train: { word: "train", colour: "--train" },
    download: { word: "download", colour: "--download" },
    upload: { word: "upload", colour: "--upload" },
    evaluate: { word: "evaluate", colour: "--evaluate" },
    prepare: { word: "prepare", colour: "--prepare" },
    lead: { word: "lead", colour: "--lead" },
    wait: { word: "wait", colour: "--wait" },
    idle: { word: "no job", colour: "--wait" },
    lost: { word: "lost", colour: "--lost" },
  };
  const markOf = (does) => (Object.hasOwn(MARKS, does) ? MARKS[does] : MARKS.idle);

  /** What the simulator calls the same things. */
  const SIMULATED = {
    training: "train",
    receiving: "download",
    sending: "upload",
    evaluating: "evaluate",
    preparing: "prepare",
    waiting: "wait",
    away: "lost",
  };

  const SHAPES = {
    train: () => html`<rect x="1" y="1" width="14" height="14" />`,
    download: () => html`<rect x="1" y="8" width="14" height="7" /><path class="thin" d="M1 8V1H15V8" />`,
    upload: () => html`<rect x="1" y="1" width="14" height="7" /><path class="thin" d="M1 8V15H15V8" />`,
    evaluate: () => html`<path class="thick" d="M2 6 6 2M2 14 14 2M10 14 14 10" /><rect class="thin" x="1" y="1" width="14" height="14" />`,
    prepare: () => html`<path class="dotted" d="M2 8H14" />`,
    lead: () => html`<path d="M8 1 15 8 8 15 1 8Z" />`,
    wait: () => html`<path class="line" d="M1 8H15" />`,
    idle: () => html`<circle cx="8" cy="8" r="2" />`,
    lost: () => html`<path class="thick" d="M2.5 2.5 13.5 13.5M13.5 2.5 2.5 13.5" />`,
  };

  const shapeOf = (does) => (Object.hasOwn(SHAPES, does) ? SHAPES[does] : SHAPES.idle)();

  /** The mark alone: the word stands beside it wherever it is used. */
  const Mark = ({ does }) =>
    html`<svg class="mark mark-${does}" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">${shapeOf(does)}</svg>`;

  const Legend = ({ of = ["train", "download", "upload", "evaluate", "wait", "lost"] }) => html`
    <ul class="legend" aria-label="marks">
      ${of.map((does) => html`<li key=${does}><${Mark} does=${does} />${markOf(does).word}</li>`)}
    </ul>`;

  // On a canvas --------------------------------------------------------------------------------------------

  let palette = null;
  const forget = () => (palette = null);
  addEventListener("shoal-theme", forget);
  matchMedia("(forced-colors: active)").addEventListener("change", forget);

  function colour(name) {
    palette ??= new Map();
    if (!palette.has(name)) {
      palette.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim() || "gray");
    }
    return palette.get(name);
  }

  function hatch(context, x, y, width, height) {
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    context.lineWidth = 1.6;
    context.beginPath();
    for (let at = x - height; at < x + width; at += 5) {
      context.moveTo(at, y + height);
      context.lineTo(at + height, y);
    }
    context.stroke();
    context.restore();
    if (width > 3) context.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
  }

  function cross(context, x, y, size) {
    context.lineWidth = 2;
    context.beginPath();
    context.moveTo(x - size, y - size);
    context.lineTo(x + size, y + size);
    context.moveTo(x + size, y - size);
    context.lineTo(x - size, y + size);
    context.stroke();
  }

  /** One stretch of a lane. `opens`: the activity begins here, and did not before the picture does. */
  function drawSpan(context, does, x, y, width, height, opens) {
    const middle = Math.round(y + height / 2) + 0.5;
    context.fillStyle = context.strokeStyle = colour(markOf(does).colour);
    context.lineWidth = 1;
    context.setLineDash([]);
    const line = (dash, thick = 1) => {
      context.lineWidth = thick;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(x, middle);
      context.lineTo(x + width, middle);
      context.stroke();
      context.setLineDash([]);
    };
    if (does === "train") context.fillRect(x, y, width, height);
    else if (does === "download") context.fillRect(x, y + height / 2, width, height / 2);
    else if (does === "upload") context.fillRect(x, y, width, height / 2);
    else if (does === "evaluate") hatch(context, x, y, width, height);
    else if (does === "prepare") line([2, 3], Math.max(3, height / 4));
    else if (does === "lead") context.fillRect(x, y + height / 3, width, height / 3);
    else if (does === "wait") line([], 1.5);
    else if (does === "lost") {
      line([4, 4], 1.5);
      const size = Math.min(5, height / 2 - 1);
      if (opens) cross(context, x + size + 1, middle, size);
    } else line([1, 5]);
  }

  Object.assign(S, { MARKS, SIMULATED, Mark, Legend, markOf, shapeOf, colour, drawSpan });
})((window.Shoal ??= {}));
