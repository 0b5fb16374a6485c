// What a person picks or writes, kept as rows of this device. Texts about it are for the page: they may name a file.

import { columnsFromPlain } from "../raw_columns.ts";
import { readTable, rowOf } from "../row_tables.ts";
import { say } from "../words.ts";
import type { BrowserRows } from "./kept_rows.ts";
import { type Kept, pictureForm, readPicture } from "./pictures.ts";

/** All of a file is in memory. */
const FILE_MAX_BYTES = 256 << 20;
/** So many pictures are shown as they were kept. */
const SHOWN_MAX = 12;

/** What became of it: how many rows were kept, what some of them look like, and what did not fit. */
export interface Added { rows: number; kept: Kept[]; problems: string[] }

/** Keep the rows of these files. `label`: the class of pictures. A file that does not fit keeps nothing, and stops no other. */
export async function addFiles(rows: BrowserRows, plain: unknown, files: File[], label: string): Promise<Added> {
  const columns = columnsFromPlain(plain), form = pictureForm(columns);
  const added: Added = { rows: 0, kept: [], problems: [] };
  for (const file of files) {
    try {
      if (/\.(npz|csv)$/i.test(file.name)) {
        if (file.size > FILE_MAX_BYTES) throw new Error(`it has more than ${FILE_MAX_BYTES >> 20} MB`);
        added.rows += await rows.add(columns, await readTable(file.name, new Uint8Array(await file.arrayBuffer()), columns));
      } else if (form) {
        const { table, kept } = await readPicture(file, form, label);
        added.rows += await rows.add(columns, table);
        if (added.kept.length < SHOWN_MAX) added.kept.push(kept);
      } else throw new Error(say("own.no-pictures"));
    } catch (error) {
      added.problems.push(`${file.name}: ${(error as Error).message}`);
    }
  }
  return added;
}

/** Keep one row that was written into a form. */
export async function addRow(rows: BrowserRows, plain: unknown, texts: Record<string, string>): Promise<Added> {
  const columns = columnsFromPlain(plain);
  try {
    return { rows: await rows.add(columns, rowOf(texts, columns)), kept: [], problems: [] };
  } catch (error) {
    return { rows: 0, kept: [], problems: [(error as Error).message] };
  }
}
