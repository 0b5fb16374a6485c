// Blobs that this browser keeps by their hashes: across rests, jobs and reloads. Nothing here is believed unread: who
// fetches a blob compares its hash, wherever it came from.

import type { BlobStore } from "../parts.ts";

const NAME = "shoal-blobs";
/** What blobs of jobs other than the one under way may take. The oldest go first. */
const OTHERS_MAX_BYTES = 512 << 20;

/** Cache Storage, and memory where the browser refuses to store: in a private window, or on a full disk. */
export class CacheBlobs implements BlobStore {
  private readonly memory = new Map<string, Uint8Array>();
  /** What the job under way is made of. */
  private readonly wanted = new Set<string>();
  private job = "";

  async get(sha256: string): Promise<Uint8Array | null> {
    this.wanted.add(sha256);
    const kept = this.memory.get(sha256);
    if (kept) return kept;
    const found = await open().then((cache) => cache?.match(address(sha256)), () => undefined);
    return found ? new Uint8Array(await found.arrayBuffer()) : null;
  }

  async put(sha256: string, blob: Uint8Array): Promise<void> {
    this.wanted.add(sha256);
    const headers = { "content-length": String(blob.length) };
    const store = async () => {
      const cache = await open();
      if (!cache) throw new Error("no Cache Storage");
      await cache.put(address(sha256), new Response(blob as BodyInit, { headers }));
    };
    try {
      await this.makeRoom(OTHERS_MAX_BYTES);
      await store();
    } catch {
      try {
        await this.makeRoom(0);
        await store();
      } catch (error) {
        console.info(`a blob stays in memory only: ${error}`);
        this.memory.set(sha256, blob);
      }
    }
  }

  /** What it keeps is not what its hash says: a disk that failed, say. */
  async drop(sha256: string): Promise<void> {
    this.memory.delete(sha256);
    await open().then((cache) => cache?.delete(address(sha256)), () => undefined);
  }

  /** What other jobs were made of may go. A job that goes on after a rest finds what it had. */
  begin(job: string): void {
    if (job === this.job) return;
    this.job = job;
    this.wanted.clear();
    this.memory.clear();
  }

  async forget(): Promise<void> {
    this.begin("");
    this.memory.clear();
    await globalThis.caches?.delete(NAME).catch(() => false);
  }

  /** Drop the oldest blobs of other jobs until they take no more than this. */
  private async makeRoom(bytes: number): Promise<void> {
    const cache = await open();
    if (!cache) return;
    const others: [Request, number][] = [];
    for (const request of await cache.keys()) {
      if (this.wanted.has(new URL(request.url).pathname.slice(PREFIX.length))) continue;
      const size = Number((await cache.match(request))?.headers.get("content-length") ?? 0);
      others.push([request, size]);
    }
    let total = others.reduce((sum, [, size]) => sum + size, 0);
    for (const [request, size] of others) {
      if (total <= bytes) return;
      await cache.delete(request);
      total -= size;
    }
  }
}

const PREFIX = "/blob/";

/** No server has this address: it is the name of an entry. */
function address(sha256: string): string {
  return `${PREFIX}${sha256}`;
}

async function open(): Promise<Cache | null> {
  return globalThis.caches ? caches.open(NAME) : null;
}
