// What a device needs of the world that it runs in: a way to the cluster's door, a place for its key, a place for files of
// jobs, and an engine. A tab, a page of others and Node each have their own; `web` and `node` hold those of Shoal.

import type { Rows } from "./examples.ts";
import type { Identity } from "./identity.ts";
import type { RawColumn } from "./raw_columns.ts";

/** The part of a WebSocket that a device uses: that of browsers has it, and that of the package ws. */
export interface Socket {
  binaryType: string;
  readonly readyState: number;
  onmessage: ((event: { data: unknown }) => unknown) | null;
  onclose: ((event: { code: number; reason: string }) => unknown) | null;
  send(data: string | Uint8Array): void;
  close(code?: number, reason?: string): void;
}

/** The way to a cluster's door. */
export interface Door {
  /** As the manager shows it, such as `https://shoal.example:7075`. */
  readonly origin: string;
  /** Ask a question of JSON; what comes back is JSON too. */
  post(path: string, body: string): Promise<{ ok: boolean; status: number; json(): Promise<unknown> }>;
  socket(path: string): Socket;
}

/** Keeps who this device is. One device uses it at a time. */
export interface KeyStore {
  /** Keys are made so that this store can write them down; else no program can read them. */
  readonly isExtractable: boolean;
  load(): Promise<Identity | null>;
  save(identity: Identity): Promise<void>;
  forget(): Promise<void>;
}

/** Keeps files of jobs by their hashes. A device hashes what it gets from here, so a store may forget, but not lie. */
export interface BlobStore {
  get(sha256: string): Promise<Uint8Array | null>;
  put(sha256: string, blob: Uint8Array): Promise<void>;
  drop(sha256: string): Promise<void>;
  /** Files that no longer belong to this job may go. */
  begin(job: string): void;
  forget(): Promise<void>;
}

/** Both compute by the processor; the second by the graphics processor too, and has no kernels for float64. */
export type Build = "plain" | "graphics";

/** ONNX Runtime, in one of its builds. */
export interface Engine {
  /** Of ONNX Runtime, as the manager shows it. */
  readonly version: string;
  /** What a person reads, such as "WebAssembly". */
  readonly name: string;
  /** What it computes on, such as "wasm" or "arm64". */
  readonly arch: string;
  readonly threads: number;
  /** Why no graphics processor can be tried; empty if one can. */
  whyNoGraphics(): Promise<string>;
  /* eslint-disable @typescript-eslint/no-explicit-any */
  /** The library: its `Tensor` and `InferenceSession`. */
  load(build: Build): Promise<any>;
  session(ort: any, graph: Uint8Array, isGraphics?: boolean): Promise<any>;
  /* eslint-enable @typescript-eslint/no-explicit-any */
}

/** Rows of a device's own, for one job. They are numbered from 0, and what comes later has higher numbers. */
export interface OwnRows {
  /** Count them again: there may be more. */
  look(): Promise<number>;
  /** The rows with these numbers, by column. An error names a file or a column, and never a value. */
  take(rows: ArrayLike<number>): Promise<Record<string, Rows>>;
}

/** Where a device has rows of its own. Nothing of them leaves it but what a model learns from them. */
export interface RowSource {
  /** Where the rows lie. What was seen of rows elsewhere says nothing about these. */
  readonly place: string;
  /** The rows in the form that a job declares. Fails if they have another form. */
  open(columns: RawColumn[]): Promise<OwnRows>;
  /** A text that `keep` kept under this name, also before the program last began; null: there is none. */
  recall(name: string): Promise<string | null>;
  /** Keep a text. It is durable when this resolves. Most are short. A device's own part of a model has up to 23 MB, and is
   * written after each lease. */
  keep(name: string, text: string): Promise<void>;
  /** Delete the rows and every text but the accounts of private jobs, whose names begin with `privacy-`. Left out where the rows
   * are not this program's to delete. */
  forget?(): Promise<void>;
}

export interface Parts {
  door: Door;
  keys: KeyStore;
  blobs: BlobStore;
  engine: Engine;
  /** Without it a device takes no job that trains on devices' own rows. */
  rows?: RowSource;
}
