// Builds the package, and the page of a cluster's door out of the same sources: `node build.mjs [FOLDER]`. What it writes for
// the page is in the repository, and `python tools/tasks.py tab-check` fails where it is not what these sources give.

import { mkdirSync, mkdtempSync, readdirSync, renameSync, rmSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const page = process.argv[2];
const absWorkingDir = dirname(fileURLToPath(import.meta.url));
const common = { absWorkingDir, bundle: true, format: "esm", target: "es2022", charset: "utf8", legalComments: "none" };

if (page) {
  const banner = { js: "// Built from tab/src by `python tools/tasks.py tab`; do not edit." };
  await build({ ...common, entryPoints: ["src/page.ts", "src/tab.ts"], outdir: resolve(page), banner });
  // Not every browser takes a module for its service worker.
  await build({ ...common, entryPoints: ["src/service.ts"], outdir: resolve(page), banner, format: "iife" });
}

// Tests in several processes build at once: each file is renamed into its place, so that none of them reads what another
// has half written.
async function into(folder, options) {
  const fresh = mkdtempSync(join(absWorkingDir, "built-"));
  await build({ ...common, ...options, outdir: fresh });
  const target = join(absWorkingDir, folder);
  mkdirSync(target, { recursive: true });
  for (const name of readdirSync(fresh)) renameSync(join(fresh, name), join(target, name));
  rmSync(fresh, { recursive: true });
}

await into("dist", { entryPoints: ["src/index.ts"], platform: "neutral" });
const node = { platform: "node", target: "node20" };
await into("dist", { ...node, entryPoints: { node: "src/node/index.ts", cli: "src/node/cli.ts" } });
// Single files for Node, where tests hold them to Python's.
const held = ["worker_role", "frames", "batches", "protobuf", "rest", "graph", "words", "own_lease", "raw_columns", "row_tables", "privacy", "privacy_ledger", "own_values", "first_model"];
await into("built", { entryPoints: held.map((name) => `src/${name}.ts`), outExtension: { ".js": ".mjs" } });
