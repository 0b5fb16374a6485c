// The parts of a device in a browser.

import type { Parts } from "../parts.ts";
import { CacheBlobs } from "./blob_store.ts";
import { WebDoor } from "./door.ts";
import { engineOf, WebEngine } from "./engine.ts";
import { BrowserRows } from "./kept_rows.ts";
import { BrowserKeys } from "./key_store.ts";

export { CacheBlobs } from "./blob_store.ts";
export { WebDoor } from "./door.ts";
export { engineOf, ENGINE_VERSION, WebEngine } from "./engine.ts";
export { BrowserRows } from "./kept_rows.ts";
export { BrowserKeys } from "./key_store.ts";
export { type Added, addFiles, addRow } from "./picked_rows.ts";

/** Parts for a cluster whose door is at this origin, such as `https://shoal.example:7075`. */
export function webParts(origin: string): Parts & { rows: BrowserRows } {
  const door = new WebDoor(origin);
  const { origin: at } = door;
  return { door, keys: new BrowserKeys(at), blobs: new CacheBlobs(), engine: new WebEngine(engineOf(at)), rows: new BrowserRows(at) };
}
