// Rows that lie in several tables, in the order in which they are asked for. Pure.

import type { Rows } from "./examples.ts";
import { DTYPES, type RawColumn, sizeOf } from "./raw_columns.ts";

/** Take each row from its table, and put all of them together. Each table is asked once. */
export async function gathered<Table>(
  columns: RawColumn[], places: { table: Table; row: number }[], take: (table: Table, rows: number[]) => Promise<Record<string, Rows>>,
): Promise<Record<string, Rows>> {
  const made = columns.map(({ name, dtype, shape }) => {
    const rowBytes = sizeOf(shape) * DTYPES[dtype].bytes;
    return { name, shape, rowBytes, type: DTYPES[dtype].stored, bytes: new Uint8Array(rowBytes * places.length) };
  });
  for (const table of new Set(places.map((place) => place.table))) {
    const here = places.flatMap((place, i) => (place.table === table ? [i] : []));
    const taken = await take(table, here.map((i) => places[i].row));
    for (const { name, rowBytes, bytes } of made) {
      here.forEach((i, at) => bytes.set(taken[name].bytes.subarray(at * rowBytes, (at + 1) * rowBytes), i * rowBytes));
    }
  }
  return Object.fromEntries(made.map(({ name, type, shape, bytes }) => [name, { type, shape: [places.length, ...shape], bytes }]));
}

/** These rows of whole columns. */
export function cut(columns: RawColumn[], whole: Record<string, Uint8Array>, rows: ArrayLike<number>): Record<string, Rows> {
  return Object.fromEntries(columns.map(({ name, dtype, shape }) => {
    const rowBytes = sizeOf(shape) * DTYPES[dtype].bytes, bytes = new Uint8Array(rowBytes * rows.length);
    for (let i = 0; i < rows.length; i++) bytes.set(whole[name].subarray(rows[i] * rowBytes, (rows[i] + 1) * rowBytes), i * rowBytes);
    return [name, { type: DTYPES[dtype].stored, shape: [rows.length, ...shape], bytes }];
  }));
}
