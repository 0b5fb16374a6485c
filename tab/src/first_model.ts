// The model that a job begins with, from its file, and the layout of each device's own part of it. Pure.

import { asFloats, readTensors } from "./safetensors.ts";

/** Where the device's own part is kept in a text, and in memory a few times. */
const OWN_MAX_BYTES = 16 << 20;

/** `parameters` come first in a layout, and buffers follow. */
interface Sizes { values: number; parameters: number }

/** What each device keeps to itself of a model. `text`: the layout as the file has it. */
export interface OwnLayout extends Sizes { text: string }

export interface FirstModel {
  /** The part that devices share, flat. */
  first: Float32Array;
  parameters: number;
  /** Null: all of the model is shared. */
  own: OwnLayout | null;
}

type Rows = [string, number[], string][];

export function firstModel(file: Uint8Array): FirstModel {
  const { tensors, notes } = readTensors(file);
  const layout = JSON.parse(notes.layout) as Rows;
  const { values, parameters } = sizesOf(layout);
  const first = new Float32Array(values);
  let at = 0;
  for (const [name, shape] of layout) {
    first.set(asFloats(tensors.get(name)!), at);
    at += product(shape);
  }
  return { first, parameters, own: "own" in notes ? ownLayout(notes.own) : null };
}

function ownLayout(text: string): OwnLayout {
  const sizes = sizesOf(JSON.parse(text) as Rows), bytes = sizes.values * Float32Array.BYTES_PER_ELEMENT;
  if (bytes > OWN_MAX_BYTES) throw new Error(`a part of this model is each device's own: ${bytes} bytes, and this device keeps at most ${OWN_MAX_BYTES}`);
  return { text, ...sizes };
}

function sizesOf(layout: Rows): Sizes {
  const size = (rows: Rows) => rows.reduce((sum, [, shape]) => sum + product(shape), 0);
  return { values: size(layout), parameters: size(layout.filter(([, , kind]) => kind === "parameter")) };
}

function product(shape: number[]): number {
  return shape.reduce((size, side) => size * side, 1);
}
