// One stream to the manager's door: a WebSocket that has answered its challenge.

import { Assembly, chunkOf, frames, type Message, type Tensors } from "./frames.ts";
import { answer, type Identity, RefusedHere } from "./identity.ts";
import type { BlobStore, Door, Socket } from "./parts.ts";
import type { Plain } from "./protobuf.ts";
import { say } from "./words.ts";

const OPEN_S = 20;
/** `readyState` of a socket that can send. */
const OPEN = 1;
const BLOB_MAX_BYTES = 1 << 30;

export interface Listening {
  frame(frame: Uint8Array): void;
  closed(code: number, reason: string): void;
}

/** A socket whose other end knows who we are. `listening` hears its frames from then on. */
export async function open(door: Door, identity: Identity, verb: string, incarnation: string, listening: Listening): Promise<Socket> {
  const socket = door.socket("/door");
  socket.binaryType = "arraybuffer";
  return new Promise((resolve, reject) => {
    let isOpen = false;
    const giveUp = setTimeout(() => socket.close(), OPEN_S * 1000);
    socket.onmessage = async ({ data }) => {
      try {
        if (isOpen) listening.frame(new Uint8Array(data as ArrayBuffer));
        else if ("challenge" in JSON.parse(data as string)) socket.send(await answer(door, identity, JSON.parse(data as string), verb, incarnation));
        else {
          isOpen = true;
          clearTimeout(giveUp);
          resolve(socket);
        }
      } catch (error) {
        socket.close(4000, String(error).slice(0, 100));
        reject(error);
      }
    };
    socket.onclose = ({ code, reason }) => {
      clearTimeout(giveUp);
      if (isOpen) listening.closed(code, reason);
      else reject(code === 4403 ? new RefusedHere(reason) : new Error(say("why.unreachable")));
    };
  });
}

/** A lane of messages. */
export class Lane {
  private constructor(private readonly socket: Socket) {}

  static async open(door: Door, identity: Identity, verb: string, incarnation: string, on: { message(message: Message): void; closed(code: number, reason: string): void }): Promise<Lane> {
    const assembly = new Assembly();
    const socket = await open(door, identity, verb, incarnation, {
      frame: (frame) => {
        const message = assembly.take(frame);
        if (message) on.message(message);
      },
      closed: on.closed,
    });
    return new Lane(socket);
  }

  send(kind: string, body: Plain, tensors: Tensors = {}): number {
    let sent = 0;
    if (this.socket.readyState !== OPEN) return sent;
    for (const frame of frames(kind, body, tensors)) {
      this.socket.send(frame);
      sent += frame.length;
    }
    return sent;
  }

  close(): void {
    this.socket.onclose = null;
    this.socket.close();
  }
}

/** Fetches blobs one after the other, from what this device keeps or from the manager, and believes none whose hash is
 * another. */
export class Blobs {
  private socket: Promise<Socket> | null = null;
  private due: { take(frame: Uint8Array): void; fail(reason: string): void } | null = null;
  private last: Promise<unknown> = Promise.resolve();

  constructor(
    private readonly door: Door, private readonly identity: Identity, private readonly incarnation: string, private readonly kept: BlobStore,
    private readonly came: (bytes: number) => void,
  ) {}

  /** Waits for the ones before it. */
  fetch(sha256: string): Promise<Uint8Array> {
    const mine = this.last.then(() => this.fetchNow(sha256));
    this.last = mine.catch(() => undefined);
    return mine;
  }

  close(): void {
    this.socket?.then((socket) => socket.close(), () => undefined);
    this.socket = null;
  }

  private async fetchNow(sha256: string): Promise<Uint8Array> {
    const known = await this.kept.get(sha256);
    if (known && (await hashOf(known)) === sha256) return known;
    if (known) await this.kept.drop(sha256);
    const whole = await this.download(sha256);
    const found = await hashOf(whole);
    if (found !== sha256) throw new Error(`a blob that is not what its hash says: ${found.slice(0, 12)}…`);
    await this.kept.put(sha256, whole);
    return whole;
  }

  private async download(sha256: string): Promise<Uint8Array> {
    this.socket ??= open(this.door, this.identity, "Fetch", this.incarnation, {
      frame: (frame) => this.due?.take(frame),
      closed: (_, reason) => {
        this.socket = null;
        this.due?.fail(reason || "connection closed");
      },
    });
    let socket: Socket;
    try {
      socket = await this.socket;
    } catch (error) {
      this.socket = null;
      throw error;
    }
    return new Promise<Uint8Array>((resolve, reject) => {
      let into: Uint8Array | null = null;
      let filled = 0;
      const take = (frame: Uint8Array) => {
        this.came(frame.length);
        if (!into) {
          const head = new Assembly().take(frame);
          if (head?.kind === "Denied") return reject(new Error(head.body.reason));
          const size = head?.body.size_bytes;
          if (head?.kind !== "Blob" || head.body.sha256 !== sha256) return reject(new Error("another blob than was asked for"));
          if (!(size <= BLOB_MAX_BYTES)) return reject(new Error(`a blob of ${size} bytes: a tab takes up to ${BLOB_MAX_BYTES}`));
          into = new Uint8Array(size);
        } else {
          const chunk = chunkOf(frame);
          if (filled + chunk.length > into.length) return reject(new Error("a blob that is longer than it said"));
          into.set(chunk, filled);
          filled += chunk.length;
        }
        if (filled === into.length) resolve(into);
      };
      this.due = { take, fail: (reason) => reject(new Error(reason)) };
      for (const frame of frames("Blob", { sha256, size_bytes: 0 })) socket.send(frame);
    }).finally(() => (this.due = null));
  }
}

async function hashOf(bytes: Uint8Array): Promise<string> {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes as BufferSource));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
