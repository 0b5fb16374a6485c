// A device's own rows in a browser's IndexedDB, with what has to be durable before an update leaves. Rows are kept as the job
// declares them, in parts in the order in which they were added. Nothing here is sent anywhere.

import { cut, gathered } from "../gathered_rows.ts";
import type { Rows } from "../examples.ts";
import { OWN } from "../own_values.ts";
import type { OwnRows, RowSource } from "../parts.ts";
import { columnsFromPlain, DTYPES, type RawColumn, sizeOf } from "../raw_columns.ts";
import type { RowTable } from "../row_tables.ts";
import { SEEN } from "../seen_rows.ts";

/** Rows are stored in parts of about this many bytes. */
const PART_BYTES = 1 << 20;
/** Parts that stay in memory; the ones that were used longest ago go first. */
const MEMORY_BYTES = 128 << 20;
const ROWS_MAX = 2 ** 31;
/** The name of a note with a mark of the last deletion. */
const DELETED = "deleted";

/** What is known of a part without its bytes. */
interface Part { form: string; count: number }

export class BrowserRows implements RowSource {
  /** Rows do not move. `forget` begins with a fresh count of what was seen. */
  readonly place = "this browser";
  private readonly database: string;
  /** Name of a text that goes with the rows -> the deletion that was the last one when it was recalled. */
  private readonly recalled = new Map<string, string | undefined>();

  /** `door`: the origin of the cluster's door. Each door has rows and accounts of its own. */
  constructor(door: string) {
    this.database = door === globalThis.location?.origin ? "shoal-rows" : `shoal-rows ${door}`;
  }

  async open(columns: RawColumn[]): Promise<OwnRows> {
    const rows = new RowsOfBrowser(this.database, columns);
    await rows.look();
    return rows;
  }

  /** The number of rows of this form that are here. */
  async count(columns: RawColumn[]): Promise<number> {
    const form = formOf(columns);
    return (await partsOf(this.database, form)).reduce((sum, { count }) => sum + count, 0);
  }

  /** Keep all rows of a table. They are durable when this resolves. Fails, and keeps none, if one of them does not fit. */
  async add(columns: RawColumn[], table: RowTable): Promise<number> {
    const form = formOf(columns);
    const rowBytes = columns.reduce((sum, { dtype, shape }) => sum + DTYPES[dtype].bytes * sizeOf(shape), 0);
    const step = Math.max(1, Math.floor(PART_BYTES / rowBytes));
    if ((await this.count(columns)) + table.count > ROWS_MAX) throw new Error(`a device has at most ${ROWS_MAX} rows`);
    // Every value is read before any is kept.
    const parts: { count: number; bytes: Record<string, Uint8Array> }[] = [];
    for (let low = 0; low < table.count; low += step) {
      const count = Math.min(step, table.count - low);
      const rows = table.take(Array.from({ length: count }, (_, i) => low + i));
      parts.push({ count, bytes: Object.fromEntries(columns.map(({ name }) => [name, rows[name].bytes])) });
    }
    await write(this.database, ["parts", "bytes"], (store) => {
      for (const { count, bytes } of parts) {
        const asked = store("parts").add({ form, count });
        asked.onsuccess = () => void store("bytes").put(bytes, asked.result);
      }
    });
    return table.count;
  }

  async recall(name: string): Promise<string | null> {
    let deleted: IDBRequest<string | undefined> | null = null;
    const text = await read<string | undefined>(this.database, "notes", (notes) => {
      // Of the same moment as the text, and answered before it.
      deleted = notes.get(DELETED);
      return notes.get(name);
    });
    if (goesWithRows(name)) this.recalled.set(name, deleted!.result);
    return text ?? null;
  }

  /** Fails for a text that goes with the rows if they were deleted since it was recalled: another tab of this browser deletes
   * them too, and knows nothing of what this one has in memory. */
  async keep(name: string, text: string): Promise<void> {
    await write(this.database, ["notes"], (store) => {
      const notes = store("notes");
      // One that is let go is kept as an empty text.
      if (!text || !this.recalled.has(name)) return void notes.put(text, name);
      const deleted: IDBRequest<string | undefined> = notes.get(DELETED);
      deleted.onsuccess = () => {
        if (deleted.result === this.recalled.get(name)) notes.put(text, name);
        else notes.transaction.abort();
      };
    });
  }

  /** Delete all rows, and the own parts of models that were made of them. The accounts of private jobs stay: what left this
   * device has left it. */
  async forget(): Promise<void> {
    await write(this.database, ["parts", "bytes", "notes"], (store) => {
      store("parts").clear();
      store("bytes").clear();
      store("notes").delete(SEEN);
      store("notes").delete(IDBKeyRange.bound(OWN, `${OWN}\uffff`));
      store("notes").put(JSON.stringify({ deletion: crypto.randomUUID() }), DELETED);
    });
  }
}

function goesWithRows(name: string): boolean {
  return name === SEEN || name.startsWith(OWN);
}

class RowsOfBrowser implements OwnRows {
  private parts: { key: number; start: number; count: number }[] = [];
  private readonly memory = new Map<number, Record<string, Uint8Array>>();
  private readonly most: number;
  private readonly form: string;

  constructor(private readonly database: string, private readonly columns: RawColumn[]) {
    this.form = formOf(columns);
    this.most = Math.max(2, Math.floor(MEMORY_BYTES / PART_BYTES));
  }

  async look(): Promise<number> {
    let start = 0;
    this.parts = (await partsOf(this.database, this.form)).map(({ key, count }) => ({ key, count, start: (start += count) - count }));
    return start;
  }

  take(rows: ArrayLike<number>): Promise<Record<string, Rows>> {
    const places = Array.from(rows, (row) => {
      const part = this.parts.find(({ start, count }) => row < start + count);
      if (!part) throw new Error("this device has fewer rows than were asked for");
      return { table: part.key, row: row - part.start };
    });
    return gathered(this.columns, places, async (key, wanted) => cut(this.columns, await this.bytes(key), wanted));
  }

  private async bytes(key: number): Promise<Record<string, Uint8Array>> {
    const known = this.memory.get(key) ?? (await read<Record<string, Uint8Array> | undefined>(this.database, "bytes", (bytes) => bytes.get(key)));
    if (!known) throw new Error("rows of this device were deleted");
    this.memory.delete(key);
    this.memory.set(key, known);
    for (const oldest of [...this.memory.keys()].slice(0, -this.most)) this.memory.delete(oldest);
    return known;
  }
}

/** Rows of two forms are of no use to each other's jobs. */
function formOf(columns: RawColumn[]): string {
  return JSON.stringify(columnsFromPlain(columns).map(({ name, dtype, shape, classes }) => [name, dtype, shape, classes]));
}

async function partsOf(database: string, form: string): Promise<(Part & { key: number })[]> {
  let keys: IDBRequest<IDBValidKey[]> | null = null;
  const parts = await read<Part[]>(database, "parts", (store) => {
    // Of the same moment as the parts, and answered before them.
    keys = store.getAllKeys();
    return store.getAll();
  });
  return parts.map((part, i) => ({ ...part, key: keys!.result[i] as number })).filter((part) => part.form === form);
}

// IndexedDB -----------------------------------------------------------------------------------------------------

const STORES = ["parts", "bytes", "notes"] as const;
type Store = (typeof STORES)[number];

function opened(name: string): Promise<IDBDatabase> {
  return new Promise((resolve, reject) => {
    const opening = indexedDB.open(name, 1);
    opening.onupgradeneeded = () => {
      opening.result.createObjectStore("parts", { autoIncrement: true });
      opening.result.createObjectStore("bytes");
      opening.result.createObjectStore("notes");
    };
    opening.onerror = () => reject(opening.error);
    opening.onsuccess = () => resolve(opening.result);
  });
}

async function read<T>(name: string, from: Store, ask: (store: IDBObjectStore) => IDBRequest): Promise<T> {
  const database = await opened(name);
  try {
    return await new Promise<T>((resolve, reject) => {
      const asked = ask(database.transaction(from, "readonly").objectStore(from));
      asked.onsuccess = () => resolve(asked.result as T);
      asked.onerror = () => reject(asked.error);
    });
  } finally {
    database.close();
  }
}

/** All of it is on the disk when this resolves, or none of it is kept. */
async function write(name: string, to: Store[], act: (store: (name: Store) => IDBObjectStore) => void): Promise<void> {
  const database = await opened(name);
  try {
    await new Promise<void>((resolve, reject) => {
      const transaction = database.transaction(to, "readwrite", { durability: "strict" });
      transaction.oncomplete = () => resolve();
      transaction.onerror = transaction.onabort = () => reject(transaction.error ?? new Error("this browser kept nothing"));
      act((store) => transaction.objectStore(store));
    });
  } finally {
    database.close();
  }
}
