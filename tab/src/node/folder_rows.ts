// A device's own rows from a folder: .npz and .csv files, as `data/own_rows.py` reads them. Counted again before every lease,
// since the folder may grow; rows that appear later come last. Errors name a file, and never a value.

import { open, readdir, readFile, rename, stat } from "node:fs/promises";
import { dirname, join } from "node:path";
import type { Rows } from "../examples.ts";
import { gathered } from "../gathered_rows.ts";
import type { OwnRows, RowSource } from "../parts.ts";
import type { RawColumn } from "../raw_columns.ts";
import { readTable, type RowTable } from "../row_tables.ts";
import { ownFolder } from "./key_store.ts";

const SUFFIXES = /\.(npz|csv)$/i;
const NAME = /^[A-Za-z0-9_.-]{1,128}$/;
/** All of a file is in memory. */
const FILE_MAX_BYTES = 1 << 30;
const ROWS_MAX = 2 ** 31;

export class FolderRows implements RowSource {
  readonly place: string;

  /** `folder`: of the rows, which is only read. `notes`: a folder of this device's own, for what has to outlive the process. */
  constructor(private readonly folder: string, private readonly notes: string) {
    this.place = folder;
  }

  async open(columns: RawColumn[]): Promise<OwnRows> {
    const rows = new RowsOfFolder(this.folder, columns);
    await rows.look();
    return rows;
  }

  async recall(name: string): Promise<string | null> {
    try {
      return await readFile(this.path(name), "utf8");
    } catch (error) {
      if ((error as { code?: string }).code === "ENOENT") return null;
      throw error;
    }
  }

  async keep(name: string, text: string): Promise<void> {
    const path = this.path(name);
    await ownFolder(this.notes);
    const file = await open(`${path}.new`, "w", 0o600);
    try {
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    await rename(`${path}.new`, path);
    // The name is durable once its folder is.
    const folder = await open(dirname(path), "r");
    await folder.sync().finally(() => folder.close());
  }

  private path(name: string): string {
    if (!NAME.test(name) || name.startsWith(".")) throw new Error("a note is named by letters, digits and dashes");
    return join(this.notes, name);
  }
}

interface Opened { stamp: string; table: RowTable }
interface Span { path: string; start: number; stop: number }

class RowsOfFolder implements OwnRows {
  private files = new Map<string, Opened>();
  /** In the order in which rows were found. */
  private spans: Span[] = [];

  constructor(private readonly folder: string, private readonly columns: RawColumn[]) {}

  async look(): Promise<number> {
    const found = await this.found();
    const files = new Map<string, Opened>();
    for (const { path, stamp } of found) {
      const known = this.files.get(path);
      files.set(path, known?.stamp === stamp ? known : { stamp, table: await named(path, async () => this.table(path)) });
    }
    this.files = files;
    const stops = new Map<string, number>();
    const kept = this.spans.filter(({ path, stop }) => {
      const isThere = (files.get(path)?.table.count ?? -1) >= stop;
      if (isThere) stops.set(path, stop);
      return isThere;
    });
    const more = found.map(({ path }) => ({ path, start: stops.get(path) ?? 0, stop: files.get(path)!.table.count }));
    this.spans = [...kept, ...more.filter(({ start, stop }) => stop > start)];
    if (this.count > ROWS_MAX) throw new Error(`the folder has ${this.count} rows; the maximum is ${ROWS_MAX}`);
    return this.count;
  }

  async take(rows: ArrayLike<number>): Promise<Record<string, Rows>> {
    const places = Array.from(rows, (row) => this.placeOf(row));
    return gathered(this.columns, places, (path, wanted) => named(path, async () => this.files.get(path)!.table.take(wanted)));
  }

  private get count(): number {
    return this.spans.reduce((sum, { start, stop }) => sum + stop - start, 0);
  }

  private placeOf(row: number): { table: string; row: number } {
    let left = row;
    for (const { path, start, stop } of this.spans) {
      if (left < stop - start) return { table: path, row: start + left };
      left -= stop - start;
    }
    throw new Error(`the folder has rows 0 to ${this.count - 1}; others were asked for`);
  }

  private async table(path: string): Promise<RowTable> {
    const { size } = await stat(join(this.folder, path));
    if (size > FILE_MAX_BYTES) throw new Error(`it has ${size} bytes; the maximum is ${FILE_MAX_BYTES}`);
    return readTable(path, await readFile(join(this.folder, path)), this.columns);
  }

  /** A file as it is now; null: it is none, or is gone. A pipe would be read for ever. */
  private async stamped(path: string): Promise<{ path: string; mtimeNs: bigint; stamp: string } | null> {
    try {
      const about = await stat(join(this.folder, path), { bigint: true });
      return about.isFile() ? { path, mtimeNs: about.mtimeNs, stamp: `${about.ino} ${about.size} ${about.mtimeNs}` } : null;
    } catch {
      return null;
    }
  }

  /** The files of rows: the one that was written last comes last. */
  private async found(): Promise<{ path: string; stamp: string }[]> {
    let entries;
    try {
      entries = await readdir(this.folder, { withFileTypes: true });
    } catch (error) {
      throw new Error(`the folder of this device's rows cannot be read: ${(error as { code?: string }).code}`);
    }
    const names = entries.filter((entry) => SUFFIXES.test(entry.name) && !entry.name.startsWith(".") && !entry.isDirectory()).map(({ name }) => name);
    const seen = (await Promise.all(names.map((path) => this.stamped(path)))).filter((each) => each !== null);
    return seen.sort((a, b) => (a.mtimeNs < b.mtimeNs ? -1 : a.mtimeNs > b.mtimeNs ? 1 : a.path < b.path ? -1 : 1));
  }
}

/** Do something with a file. An error names it. */
async function named<T>(path: string, use: () => Promise<T>): Promise<T> {
  try {
    return await use();
  } catch (error) {
    const { code, message } = error as { code?: string; message: string };
    throw new Error(code ? `${path} cannot be read: ${code}` : `${path}: ${message}`);
  }
}
