// The two builds of ONNX Runtime that a tab may load, and whether this browser has a graphics processor for it.

export const ENGINE_VERSION = "1.30.0";
const ENGINE = `/engine/${ENGINE_VERSION}/`;
/** Both compute by WebAssembly; the second by WebGPU too, and has no kernels for float64. */
const BUILDS = { plain: "ort.wasm.min.mjs", graphics: "ort.jspi.min.mjs" };
export type Build = keyof typeof BUILDS;
/** In the other layout, NHWC, a convolution was once seen to be wrong without a word. */
const WEBGPU = { name: "webgpu", preferredLayout: "NCHW" };
/** More threads than this bring small models nothing. */
const THREADS_MAX = 4;

/* eslint-disable @typescript-eslint/no-explicit-any */
const loaded = new Map<Build, Promise<any>>();

/** A build of the library, loaded once. More than one thread only where the page is isolated from all others. */
export function load(build: Build): Promise<any> {
  const known = loaded.get(build) ?? import(/* @vite-ignore */ `${ENGINE}${BUILDS[build]}`).then((ort) => {
    ort.env.wasm.wasmPaths = ENGINE;
    ort.env.wasm.numThreads = threads();
    ort.env.logLevel = "error";
    return ort;
  });
  loaded.set(build, known);
  return known;
}

export function session(ort: any, graph: Uint8Array, isGraphics = false): Promise<any> {
  return ort.InferenceSession.create(graph, { executionProviders: isGraphics ? [WEBGPU, "wasm"] : ["wasm"] });
}

export function threads(): number {
  const isIsolated = globalThis.crossOriginIsolated === true;
  return isIsolated ? Math.max(1, Math.min(THREADS_MAX, Math.floor((navigator.hardwareConcurrency || 1) / 2))) : 1;
}

/** Why no graphics processor can be tried; empty: one can. */
export async function whyNoGraphics(): Promise<string> {
  const { gpu } = navigator as unknown as { gpu?: { requestAdapter(): Promise<unknown> } };
  if (!gpu) return "no WebGPU in this browser";
  // The build for browsers that cannot wait in the midst of WebAssembly is half as large again.
  if (!("Suspending" in WebAssembly)) return "no JSPI in this browser";
  const adapter = await gpu.requestAdapter().catch(() => null);
  return adapter ? "" : "no graphics processor";
}
