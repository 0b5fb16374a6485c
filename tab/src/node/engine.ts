// ONNX Runtime in Node: the native library, which is compiled ahead and needs no time to warm up.

import { availableParallelism, arch } from "node:os";
import type { Engine } from "../parts.ts";
import { needed } from "./door.ts";

/* eslint-disable @typescript-eslint/no-explicit-any */
export class NodeEngine implements Engine {
  readonly name = "ONNX Runtime";
  readonly arch = arch();
  readonly version: string;
  readonly threads: number;
  private readonly ort: any;

  /** `threads`: how many compute; 0 means half of the processors. */
  constructor(threads = 0) {
    this.ort = needed("onnxruntime-node");
    this.version = this.ort.env.versions.node ?? this.ort.env.versions.common;
    this.threads = threads || Math.max(1, Math.floor(availableParallelism() / 2));
  }

  async load(): Promise<any> {
    return this.ort;
  }

  session(ort: any, graph: Uint8Array): Promise<any> {
    return ort.InferenceSession.create(graph, { executionProviders: ["cpu"], intraOpNumThreads: this.threads, interOpNumThreads: 1 });
  }

  async whyNoGraphics(): Promise<string> {
    return "this program computes by the processor";
  }
}
