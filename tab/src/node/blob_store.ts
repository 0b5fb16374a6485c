// Files of jobs in a folder, by their hashes: across restarts.

import { readdir, readFile, rename, rm, stat, utimes, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { BlobStore } from "../parts.ts";
import { ownFolder } from "./key_store.ts";

/** What files of jobs other than the one under way may take. The oldest go first. */
const OTHERS_MAX_BYTES = 512 << 20;
const SHA256 = /^[0-9a-f]{64}$/;

export class FolderBlobs implements BlobStore {
  private readonly wanted = new Set<string>();
  private job = "";

  constructor(private readonly folder: string) {}

  async get(sha256: string): Promise<Uint8Array | null> {
    this.wanted.add(sha256);
    const path = this.path(sha256);
    try {
      const found = await readFile(path);
      await utimes(path, new Date(), new Date());
      return new Uint8Array(found.buffer, found.byteOffset, found.length);
    } catch {
      return null;
    }
  }

  async put(sha256: string, blob: Uint8Array): Promise<void> {
    this.wanted.add(sha256);
    try {
      await ownFolder(this.folder);
      await this.makeRoom();
      await writeFile(`${this.path(sha256)}.new`, blob, { mode: 0o600 });
      await rename(`${this.path(sha256)}.new`, this.path(sha256));
    } catch (error) {
      // A full disk costs another download, not the job.
      await rm(`${this.path(sha256)}.new`, { force: true });
      console.warn(`a file of the job is not kept: ${(error as Error).message}`);
    }
  }

  async drop(sha256: string): Promise<void> {
    await rm(this.path(sha256), { force: true });
  }

  begin(job: string): void {
    if (job === this.job) return;
    this.job = job;
    this.wanted.clear();
  }

  async forget(): Promise<void> {
    this.begin("");
    await rm(this.folder, { recursive: true, force: true });
  }

  private async makeRoom(): Promise<void> {
    const names = (await readdir(this.folder)).filter((name) => SHA256.test(name) && !this.wanted.has(name));
    const others = await Promise.all(names.map(async (name) => ({ name, ...(await sizeAndAge(join(this.folder, name))) })));
    others.sort((a, b) => a.used_ms - b.used_ms);
    let total = others.reduce((sum, { bytes }) => sum + bytes, 0);
    for (const { name, bytes } of others) {
      if (total <= OTHERS_MAX_BYTES) return;
      await this.drop(name);
      total -= bytes;
    }
  }

  private path(sha256: string): string {
    if (!SHA256.test(sha256)) throw new Error("a file of a job is named by 64 hexadecimal digits");
    return join(this.folder, sha256);
  }
}

async function sizeAndAge(path: string): Promise<{ bytes: number; used_ms: number }> {
  const { size, mtimeMs } = await stat(path);
  return { bytes: size, used_ms: mtimeMs };
}
