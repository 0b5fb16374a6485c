// The key of a Node process: one file of its owner's, in a folder of its owner's.

import { chmod, mkdir, readFile, rename, rm, writeFile } from "node:fs/promises";
import { join } from "node:path";
import type { Identity } from "../identity.ts";
import type { KeyStore } from "../parts.ts";

const FILE = "identity.json";
const ECDSA = { name: "ECDSA", namedCurve: "P-256" };

export class FolderKeys implements KeyStore {
  readonly isExtractable = true;

  constructor(private readonly folder: string) {}

  async load(): Promise<Identity | null> {
    let text: string;
    try {
      text = await readFile(join(this.folder, FILE), "utf8");
    } catch (error) {
      if ((error as { code?: string }).code === "ENOENT") return null;
      throw error;
    }
    const { node, cluster, certificate_pem, key_pkcs8 } = JSON.parse(text) as Record<string, string>;
    const key = await crypto.subtle.importKey("pkcs8", Buffer.from(key_pkcs8, "base64"), ECDSA, false, ["sign"]);
    return { node, cluster, certificate_pem, key };
  }

  async save({ node, cluster, certificate_pem, key }: Identity): Promise<void> {
    const key_pkcs8 = Buffer.from(await crypto.subtle.exportKey("pkcs8", key)).toString("base64");
    await ownFolder(this.folder);
    const fresh = join(this.folder, `${FILE}.new`);
    await writeFile(fresh, JSON.stringify({ node, cluster, certificate_pem, key_pkcs8 }), { mode: 0o600 });
    // A file that was there already keeps its mode.
    await chmod(fresh, 0o600);
    await rename(fresh, join(this.folder, FILE));
  }

  async forget(): Promise<void> {
    await rm(join(this.folder, FILE), { force: true });
  }
}

/** Make a folder that no other user of this machine may open. */
export async function ownFolder(folder: string): Promise<void> {
  await mkdir(folder, { recursive: true, mode: 0o700 });
  await chmod(folder, 0o700);
}
