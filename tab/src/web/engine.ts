// ONNX Runtime in a browser: its two builds, and whether this browser has a graphics processor for it.

import type { Build, Engine } from "../parts.ts";

export const ENGINE_VERSION = "1.30.0";
const BUILDS = { plain: "ort.wasm.min.mjs", graphics: "ort.jspi.min.mjs" };
/** In the other layout, NHWC, a convolution was once seen to be wrong without a word. */
const WEBGPU = { name: "webgpu", preferredLayout: "NCHW" };
/** More threads than this bring small models nothing. */
const THREADS_MAX = 4;

/* eslint-disable @typescript-eslint/no-explicit-any */

/** Where a door has the library's files, as `shoal browser runtime` brought them. */
export function engineOf(door: string): string {
  return `${door}/engine/${ENGINE_VERSION}/`;
}

export class WebEngine implements Engine {
  readonly version = ENGINE_VERSION;
  readonly name = "WebAssembly";
  readonly arch = "wasm";
  private readonly loaded = new Map<Build, Promise<any>>();

  /** `files`: the folder of the library's files. A page of another site can serve them itself. */
  constructor(private readonly files: string) {}

  /** More than one only where the page is isolated from all others. */
  get threads(): number {
    const isIsolated = globalThis.crossOriginIsolated === true;
    return isIsolated ? Math.max(1, Math.min(THREADS_MAX, Math.floor((navigator.hardwareConcurrency || 1) / 2))) : 1;
  }

  /** A build of the library, loaded once. */
  load(build: Build): Promise<any> {
    const known = this.loaded.get(build) ?? import(/* @vite-ignore */ `${this.files}${BUILDS[build]}`).then((ort) => {
      ort.env.wasm.wasmPaths = this.files;
      ort.env.wasm.numThreads = this.threads;
      ort.env.logLevel = "error";
      return ort;
    });
    this.loaded.set(build, known);
    return known;
  }

  session(ort: any, graph: Uint8Array, isGraphics = false): Promise<any> {
    return ort.InferenceSession.create(graph, { executionProviders: isGraphics ? [WEBGPU, "wasm"] : ["wasm"] });
  }

  async whyNoGraphics(): Promise<string> {
    const { gpu } = navigator as unknown as { gpu?: { requestAdapter(): Promise<unknown> } };
    if (!gpu) return "no WebGPU in this browser";
    // The build for browsers that cannot wait in the midst of WebAssembly is half as large again.
    if (!("Suspending" in WebAssembly)) return "no JSPI in this browser";
    const adapter = await gpu.requestAdapter().catch(() => null);
    return adapter ? "" : "no graphics processor";
  }
}
