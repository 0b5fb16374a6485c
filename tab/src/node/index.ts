// The parts of a device in a Node process.

import { join, resolve } from "node:path";
import type { Parts } from "../parts.ts";
import { FolderBlobs } from "./blob_store.ts";
import { NodeDoor } from "./door.ts";
import { NodeEngine } from "./engine.ts";
import { FolderRows } from "./folder_rows.ts";
import { FolderKeys } from "./key_store.ts";

export { FolderBlobs } from "./blob_store.ts";
export { NodeDoor } from "./door.ts";
export { NodeEngine } from "./engine.ts";
export { FolderRows } from "./folder_rows.ts";
export { FolderKeys } from "./key_store.ts";

/** Parts for a cluster whose door is at this origin. `home`: a folder for its key and for files of jobs. `threads`: how many
 * compute; 0 means half of the processors. `data`: a folder with rows of this device's own; empty: it has none. Needs the packages ws
 * and onnxruntime-node. */
export function nodeParts(origin: string, home: string, threads = 0, data = ""): Parts {
  const door = NodeDoor.open(origin);
  const parts = { door, keys: new FolderKeys(home), blobs: new FolderBlobs(join(home, "blobs")), engine: new NodeEngine(threads) };
  return data ? { ...parts, rows: new FolderRows(resolve(data), join(home, "rows")) } : parts;
}
