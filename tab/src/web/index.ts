// The parts of a device in a browser.

import type { Parts } from "../parts.ts";
import { CacheBlobs } from "./blob_store.ts";
import { WebDoor } from "./door.ts";
import { engineOf, WebEngine } from "./engine.ts";
import { BrowserKeys } from "./key_store.ts";

export { CacheBlobs } from "./blob_store.ts";
export { WebDoor } from "./door.ts";
export { engineOf, ENGINE_VERSION, WebEngine } from "./engine.ts";
export { BrowserKeys } from "./key_store.ts";

/** Parts for a cluster whose door is at this origin, such as `https://shoal.example:7075`. */
export function webParts(origin: string): Parts {
  const door = new WebDoor(origin);
  return { door, keys: new BrowserKeys(door.origin), blobs: new CacheBlobs(), engine: new WebEngine(engineOf(door.origin)) };
}
