// The key of a browser: no script can read it, and it stays in IndexedDB. One for each door.

import type { Identity } from "../identity.ts";
import type { KeyStore } from "../parts.ts";

export class BrowserKeys implements KeyStore {
  readonly isExtractable = false;
  private readonly name: string;

  constructor(door: string) {
    // The page that a door serves has its own store of one.
    this.name = door === globalThis.location?.origin ? "identity" : `identity ${door}`;
  }

  async load(): Promise<Identity | null> {
    return (await store<Identity | undefined>("readonly", (kept) => kept.get(this.name))) ?? null;
  }

  async save(identity: Identity): Promise<void> {
    await store("readwrite", (kept) => kept.put(identity, this.name));
  }

  async forget(): Promise<void> {
    await store("readwrite", (kept) => kept.delete(this.name));
  }
}

function store<T>(mode: IDBTransactionMode, act: (kept: IDBObjectStore) => IDBRequest): Promise<T> {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open("shoal", 1);
    opening.onupgradeneeded = () => opening.result.createObjectStore("kept");
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => {
      const asked = act(opening.result.transaction("kept", mode).objectStore("kept"));
      asked.onsuccess = () => resolve(asked.result as T);
      asked.onerror = () => reject(asked.error);
    };
  });
}
