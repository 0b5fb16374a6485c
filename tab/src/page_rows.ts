// The part of the page for rows of a person's own: what a job wants, files and forms that give it, and what leaves the device.

import type { Offer, OwnOffer } from "./identity.ts";
import { leaving } from "./leaving.ts";
import { columnsFromPlain, described, type RawColumn } from "./raw_columns.ts";
import type { Added, Said, Shown } from "./tab.ts";
import type { Kept } from "./web/pictures.ts";
import { pictureForm } from "./web/pictures.ts";
import { language, say, type Word } from "./words.ts";

const at = <T extends HTMLElement = HTMLElement>(id: string) => document.getElementById(id) as T;
const made = <Kind extends HTMLElement>(name: string, fields: object) => Object.assign(document.createElement(name), fields) as Kind;

/** Columns with more fields than this are given by files. */
const FIELDS_MAX = 12;
/** The jobs that the panel was made for. */
let shownFor = "";

/** The job whose rows are asked for: the one that waits for an answer, or the first that wants any. */
export function wanting({ offer, about }: Shown): Offer | null {
  if (offer) return offer.own ? offer : null;
  return about?.jobs.find(({ own }) => own) ?? null;
}

/** Show the rows of a job in this place. `tell`: to the thread that keeps them. */
export function drawRows(now: Shown, place: HTMLElement, device: string, tell: (said: Said) => void): void {
  const wanted = wanting(now), panel = at("rows");
  panel.hidden = !wanted;
  if (!wanted?.own) return;
  // An element that moves loses what a person was about to type.
  if (panel.parentElement !== place) place.append(panel);
  const held = now.rows[wanted.job] ?? 0;
  at("rows-held").textContent = held ? counted(held, "own.held-one", "own.held") : say("own.none");
  at("forget-rows").hidden = !held;
  // The panel is made anew for another job only: its fields hold what a person chose.
  const all = now.offer ? [now.offer] : now.about!.jobs;
  const key = JSON.stringify(all.map(({ job, own }) => [job, own]));
  if (shownFor === key) return;
  shownFor = key;
  at("rows-lead").textContent = say("own.lead", wanted.name);
  at("leaves").replaceChildren(...all.flatMap(({ name, own }) => (own ? listed(say("own.leaves", name), leaving(own, device)) : [])));
  const columns = readable(wanted.own);
  drawFiles(columns, wanted.own.columns, tell);
  drawForm(columns, wanted.own.columns, tell);
  at("forget-rows").onclick = () => tell({ say: "forget-rows" });
}

function listed(title: string, lines: string[]): HTMLElement[] {
  const list = made("ul", {});
  list.append(...lines.map((textContent) => made("li", { textContent })));
  return [made("h3", { textContent: title }), list];
}

/** Columns that cannot be read fail when the job is prepared, with a reason. */
function readable({ columns }: OwnOffer): RawColumn[] {
  try {
    return columnsFromPlain(columns);
  } catch {
    return [];
  }
}

function drawFiles(columns: RawColumn[], plain: unknown, tell: (said: Said) => void): void {
  const pictures = pictureForm(columns), files = at<HTMLInputElement>("row-files");
  at("rows-tables").textContent = say("own.tables", columns.map((column) => `${column.name} (${described(column)})`).join(", "));
  at("rows-pictures").hidden = !pictures;
  at("rows-pictures").textContent = pictures ? say("own.pictures", pictures.width, pictures.height) : "";
  files.accept = [".npz", ".csv", ...(pictures ? ["image/*"] : [])].join(",");
  const label = pictures?.label ?? null, place = at("row-class");
  place.replaceChildren();
  if (label) place.append(made("span", { textContent: say(label.classes.length ? "own.class" : "own.class-number") }), field(label, "class-of-pictures"));
  files.onchange = () => {
    const chosen = [...(files.files ?? [])];
    const text = document.getElementById("class-of-pictures") as HTMLInputElement | HTMLSelectElement | null;
    if (chosen.length) tell({ say: "add-files", columns: plain, files: chosen, label: text?.value ?? "" });
    // The same file again is a change too.
    files.value = "";
  };
}

/** A form for rows that a person can write: one value in each column, and not many. */
function drawForm(columns: RawColumn[], plain: unknown, tell: (said: Said) => void): void {
  const form = at<HTMLFormElement>("row-form");
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
    tell({ say: "add-row", columns: plain, texts: Object.fromEntries(fields.map(({ column, input }) => [column.name, input.value])) });
  };
}

function field({ dtype, classes }: RawColumn, id: string): HTMLInputElement | HTMLSelectElement {
  if (!classes.length && dtype !== "bool") {
    return made<HTMLInputElement>("input", { id, required: true, inputMode: dtype === "float32" ? "decimal" : "numeric", autocomplete: "off" });
  }
  const select = made<HTMLSelectElement>("select", { id });
  const choices = classes.length ? classes.map((name) => [name, name]) : [["1", say("own.yes")], ["0", say("own.no")]];
  select.append(...choices.map(([value, textContent]) => made("option", { value, textContent })));
  return select;
}

function counted(count: number, one: Word, many: Word): string {
  return count === 1 ? say(one) : say(many, count.toLocaleString(language()));
}

/** Say what became of rows that were given. */
export function tellAdded({ rows, kept, problems }: Added): void {
  at("rows-told").textContent = [...(rows ? [counted(rows, "own.added-one", "own.added")] : []), ...problems].join("\n");
  at("rows-kept").replaceChildren(...(kept.length ? [made("p", { textContent: say("own.kept") })] : []), ...kept.map(picture));
}

function picture({ width, height, pixels }: Kept): HTMLCanvasElement {
  const canvas = made<HTMLCanvasElement>("canvas", { width, height });
  canvas.getContext("2d")!.putImageData(new ImageData(pixels as Uint8ClampedArray<ArrayBuffer>, width, height), 0, 0);
  return canvas;
}
