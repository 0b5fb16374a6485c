// The parts of a device in a Node process.

import { join } from "node:path";
import type { Parts } from "../parts.ts";
import { FolderBlobs } from "./blob_store.ts";
import { NodeDoor } from "./door.ts";
import { NodeEngine } from "./engine.ts";
import { FolderKeys } from "./key_store.ts";

export { FolderBlobs } from "./blob_store.ts";
export { NodeDoor } from "./door.ts";
export { NodeEngine } from "./engine.ts";
export { FolderKeys } from "./key_store.ts";

/** Parts for a cluster whose door is at this origin. `home`: a folder for its key and for files of jobs. `threads`: how many
 * compute; 0 means half of the processors. Needs the packages ws and onnxruntime-node. */
export function nodeParts(origin: string, home: string, threads = 0): Parts {
  const door = NodeDoor.open(origin);
  return { door, keys: new FolderKeys(home), blobs: new FolderBlobs(join(home, "blobs")), engine: new NodeEngine(threads) };
}
