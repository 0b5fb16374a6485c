// Pictures that a person picks, as rows of the one column of pixels that a job declares. A picture of another size is scaled so
// that it covers the job's, and its middle is kept; the page shows what was kept. Errors stay in the page.

import { classOf, type RawColumn } from "../raw_columns.ts";
import { type RowTable, tableOf } from "../row_tables.ts";

/** Where the pixels of a job's pictures go, and their class if they have one. */
export interface PictureForm { column: RawColumn; label: RawColumn | null; width: number; height: number; channels: number; isFirst: boolean }

/** A picture as it was kept: red, green, blue and alpha. */
export interface Kept { width: number; height: number; pixels: Uint8ClampedArray }

const CHANNELS = [1, 3, 4];
const PICTURE_MAX_BYTES = 64 << 20;
const PIXELS_MAX = 64e6;

/** Return where pictures go, or null if the job takes none. */
export function pictureForm(columns: RawColumn[]): PictureForm | null {
  const pictures = columns.filter(({ dtype, shape }) => dtype === "uint8" && (shape.length === 2 || shape.length === 3));
  const labels = columns.filter(({ dtype, shape }) => dtype.includes("int") && !shape.length);
  if (pictures.length !== 1 || columns.length > 2 || labels.length !== columns.length - 1) return null;
  const [column] = pictures, [first, second, third] = [...column.shape, 1];
  if (CHANNELS.includes(third)) return { column, label: labels[0] ?? null, height: first, width: second, channels: third, isFirst: false };
  return CHANNELS.includes(first) ? { column, label: labels[0] ?? null, height: second, width: third, channels: first, isFirst: true } : null;
}

/** Read a picture of this class. `label`: the name of the class, or its number. */
export async function readPicture(file: Blob, form: PictureForm, label: string): Promise<{ table: RowTable; kept: Kept }> {
  if (file.size > PICTURE_MAX_BYTES) throw new Error(`the picture has more than ${PICTURE_MAX_BYTES >> 20} MB`);
  const kept = await fittedPicture(file, form);
  const { column, channels, isFirst } = form;
  const values: Parameters<typeof tableOf>[0] = { [column.name]: { dtype: "uint8", shape: [1, ...column.shape], data: pixelsOf(kept, channels, isFirst) } };
  if (form.label) values[form.label.name] = { dtype: "int64", shape: [1], data: [classOf(label, form.label)] };
  return { table: tableOf(values, form.label ? [column, form.label] : [column]), kept };
}

async function fittedPicture(file: Blob, { width, height, channels }: PictureForm): Promise<Kept> {
  // As it was stored: no profile of colours, and turned as the camera says.
  const bitmap = await createImageBitmap(file, { colorSpaceConversion: "none", imageOrientation: "from-image" }).catch(() => {
    throw new Error("this is not a picture that this browser reads");
  });
  try {
    if (bitmap.width * bitmap.height > PIXELS_MAX) throw new Error(`the picture has more than ${PIXELS_MAX / 1e6} million pixels`);
    const canvas = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true })!;
    canvas.imageSmoothingQuality = "high";
    if (channels < 4) {
      canvas.fillStyle = "white";
      canvas.fillRect(0, 0, width, height);
    }
    const scale = Math.min(bitmap.width / width, bitmap.height / height), [w, h] = [width * scale, height * scale];
    canvas.drawImage(bitmap, (bitmap.width - w) / 2, (bitmap.height - h) / 2, w, h, 0, 0, width, height);
    return { width, height, pixels: canvas.getImageData(0, 0, width, height).data };
  } finally {
    bitmap.close();
  }
}

function pixelsOf({ width, height, pixels }: Kept, channels: number, isFirst: boolean): Uint8Array {
  const size = width * height, made = new Uint8Array(size * channels);
  for (let i = 0; i < size; i++) {
    const [red, green, blue] = pixels.subarray(4 * i, 4 * i + 3);
    // Luma as Pillow rounds it (ITU-R BT.601), so that an agent has the same value.
    if (channels === 1) made[i] = (red * 19595 + green * 38470 + blue * 7471 + 0x8000) >> 16;
    else for (let channel = 0; channel < channels; channel++) made[isFirst ? channel * size + i : i * channels + channel] = pixels[4 * i + channel];
  }
  return made;
}
