// The thread of the page that is a device: so the page stays quick. It hears what its user says, and tells how it goes.

import { Device, type Shown } from "./device.ts";
import { type Added, addFiles, addRow, webParts } from "./web/index.ts";

export type { Shown } from "./device.ts";
export type { Added } from "./web/index.ts";

/** What it tells the page: how the device is, or what became of rows that were picked. */
export type Told = { shown: Shown } | { added: Added };

/** What the page says. */
export type Said =
  | { say: "look"; secret: string }
  | { say: "join"; secret: string; wanted: string; about: string }
  | { say: "start"; about: string }
  | { say: "take" }
  | { say: "later"; megabytes: number }
  | { say: "pause"; why: string }
  | { say: "graphics"; isWanted: boolean }
  /** Rows of the person's own, for jobs that declare these columns. */
  | { say: "add-files"; columns: unknown; files: File[]; label: string }
  | { say: "add-row"; columns: unknown; texts: Record<string, string> }
  | { say: "forget-rows" }
  | { say: "stop" }
  | { say: "forget" };

const parts = webParts(location.origin);
const device = new Device(parts);
const tell = (told: Told) => postMessage(told);
device.on("state", (shown) => tell({ shown }));
device.on("record", ({ kind, reason }) => console.info(`${kind}: ${reason}`));

async function hear(said: Said): Promise<unknown> {
  switch (said.say) {
    case "look": return device.look(said.secret);
    case "join": return device.join(said.secret, said.wanted, said.about);
    case "start": return device.start(said.about);
    case "take": return device.take();
    case "later": return device.later(said.megabytes);
    case "pause": return device.pause(said.why);
    case "graphics": return device.graphics(said.isWanted);
    case "add-files": return added(await addFiles(parts.rows, said.columns, said.files, said.label));
    case "add-row": return added(await addRow(parts.rows, said.columns, said.texts));
    case "forget-rows": return device.forgetRows();
    case "stop": return device.stop();
    case "forget": return device.forget();
  }
}

async function added(found: Added): Promise<void> {
  tell({ added: found });
  if (found.rows) await device.recount();
}

addEventListener("message", ({ data }) => void hear(data as Said));
