// The way of a Node process to a door, by the package ws.

import { createRequire } from "node:module";
import type { Door, Socket } from "../parts.ts";

type Sockets = new (url: string, options: { origin: string; perMessageDeflate: boolean; maxPayload: number }) => Socket & { onerror: unknown };

/** A frame has a chunk of 1 MiB and an envelope. */
const FRAME_MAX_BYTES = 4 << 20;

export class NodeDoor implements Door {
  readonly origin: string;

  constructor(origin: string, private readonly sockets: Sockets) {
    this.origin = new URL(origin).origin;
  }

  static open(origin: string): NodeDoor {
    return new NodeDoor(origin, needed("ws").WebSocket as Sockets);
  }

  /** The door asks every caller for its origin; a program has the door's own. */
  post(path: string, body: string): Promise<Response> {
    return fetch(this.origin + path, { method: "POST", body, headers: { origin: this.origin } });
  }

  socket(path: string): Socket {
    const options = { origin: this.origin, perMessageDeflate: false, maxPayload: FRAME_MAX_BYTES };
    const made = new this.sockets(this.origin.replace(/^http/, "ws") + path, options);
    // An error is followed by `onclose`, where it is dealt with.
    made.onerror = () => undefined;
    return made;
  }
}

/** A package that this process installed beside @shoal/worker, or a line that says how. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export function needed(name: string): any {
  const base = createRequire(import.meta.url);
  try {
    return base(name);
  } catch (error) {
    if ((error as { code?: string }).code !== "MODULE_NOT_FOUND") throw error;
    throw new Error(`the package ${name} is not installed: run \`npm install ${name}\` beside @shoal/worker`);
  }
}
