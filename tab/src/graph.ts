// What a captured graph may be, checked byte by byte before ONNX Runtime sees it: as `trainer/portable/graph.py` does, by
// the same rules (`graph_rules.ts`). Pure; a test holds the two together on thousands of broken graphs.

import { GRAPH_FIELDS, GRAPH_MAX_BYTES, IR_VERSION, LOOP, NODE_NAMES_MAX, NODES_MAX, OPERATIONS, OPSET } from "./graph_rules.ts";

type Part = keyof typeof GRAPH_FIELDS;
type Value = bigint | Uint8Array;

const VARINT = 0, FIXED64 = 1, BYTES = 2, FIXED32 = 5;
const KIND_CHARS = 40;
/** As it is written: a mark of byte order is no part of any name. */
const KIND = new TextDecoder("utf-8", { ignoreBOM: true });
const { model: MODEL, opset: SET, graph: GRAPH, node: NODE, attribute: ATTRIBUTE } = GRAPH_FIELDS;

/** Refuse what is no graph of ours; how many nodes it has. */
export function checkGraph(graph: Uint8Array): number {
  if (graph.length > GRAPH_MAX_BYTES) throw new Error(`a graph has ${graph.length} bytes, at most ${GRAPH_MAX_BYTES}`);
  const bodies: Uint8Array[] = [];
  const sets: { domain: Value; version: Value }[] = [];
  for (const [field, value] of fields(graph, "model")) {
    if (field === MODEL.ir_version && value !== BigInt(IR_VERSION)) throw new Error(`a graph of another format than ${IR_VERSION}`);
    if (field === MODEL.graph) bodies.push(part(value));
    else if (field === MODEL.opset) {
      const set: { domain: Value; version: Value } = { domain: new Uint8Array(), version: 0n };
      for (const [key, each] of fields(part(value), "opset")) set[key === SET.domain ? "domain" : "version"] = each;
      sets.push(set);
    }
  }
  if (bodies.length !== 1 || sets.length !== 1) throw new Error("a graph file holds one graph and one set of operations");
  if (part(sets[0].domain).length || sets[0].version !== BigInt(OPSET)) throw new Error(`a graph has operations of ONNX's own set ${OPSET} alone`);
  return checkBody(bodies[0], LOOP);
}

/** How many nodes it has, with those of a loop's step. `loop`: the operation that may have a graph. */
function checkBody(body: Uint8Array, loop: string): number {
  let nodes = 0;
  for (const [field, value] of fields(body, "graph")) {
    if (field === GRAPH.node) {
      nodes += 1 + checkNode(part(value), loop);
      if (nodes > NODES_MAX) throw new Error(`a graph has more than ${NODES_MAX} nodes`);
    } else if (field === GRAPH.initializer) readAll(part(value), "constant");
  }
  return nodes;
}

/** How many nodes its steps have, if it is a loop. */
function checkNode(node: Uint8Array, loop: string): number {
  let kind = "", names = 0;
  const steps: Uint8Array[] = [];
  for (const [field, value] of fields(node, "node")) {
    if (field === NODE.kind) kind = KIND.decode(part(value).subarray(0, KIND_CHARS));
    else if (field === NODE.input || field === NODE.output) names += 1;
    else if (field === NODE.attribute) {
      for (const [key, inside] of fields(part(value), "attribute")) if (key === ATTRIBUTE.graph) steps.push(part(inside));
    }
  }
  if (!OPERATIONS.has(kind)) throw new Error(`a graph has the operation ${JSON.stringify(kind)}, which is not among those that devices run`);
  if (names > NODE_NAMES_MAX) throw new Error(`a node of a graph reads and gives more than ${NODE_NAMES_MAX} values`);
  if (steps.length !== Number(kind === LOOP) || (steps.length && kind !== loop)) throw new Error(`${kind} has ${steps.length} graphs: a graph has loops of one step, and a step has no loops`);
  return steps.reduce((sum, step) => sum + checkBody(step, ""), 0);
}

function readAll(bytes: Uint8Array, what: Part): void {
  for (const _ of fields(bytes, what));
}

function part(value: Value): Uint8Array {
  if (typeof value === "bigint") throw new Error("a graph has a number where a part of it is due");
  return value;
}

/** The fields of one protobuf message, in order. Those that are not known are refused. */
function* fields(data: Uint8Array, what: Part): Generator<[number, Value]> {
  const known = new Set<number>(Object.values(GRAPH_FIELDS[what]));
  let at = 0;
  const varint = (): bigint => {
    let value = 0n;
    for (let shift = 0n; shift < 70n; shift += 7n) {
      if (at >= data.length) throw new Error("a graph ends early");
      const byte = data[at++];
      value |= BigInt(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw new Error("a graph has a number that does not end");
  };
  while (at < data.length) {
    const key = varint();
    const field = Number(key >> 3n), kind = Number(key & 7n);
    if (!known.has(field)) throw new Error(`the ${what} of a graph has field ${field}, which is none of ours`);
    if (kind === VARINT) {
      yield [field, varint()];
      continue;
    }
    if (kind !== BYTES && kind !== FIXED32 && kind !== FIXED64) throw new Error("a graph is not what protobuf writes");
    const length = kind === BYTES ? varint() : kind === FIXED32 ? 4n : 8n;
    if (length > BigInt(data.length - at)) throw new Error("a graph ends early");
    yield [field, data.subarray(at, at + Number(length))];
    at += Number(length);
  }
}
