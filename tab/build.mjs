// Builds the page's two programs into the package: `node build.mjs [FOLDER]`. What it writes is in the repository, and
// `python tools/tasks.py tab-check` fails where it is not what these sources give.

import { mkdirSync, mkdtempSync, readdirSync, renameSync, rmdirSync } from "node:fs";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const target = resolve(process.argv[2] ?? "../src/shoal/browser/static");
const absWorkingDir = dirname(fileURLToPath(import.meta.url));

await build({
  absWorkingDir,
  entryPoints: ["src/page.ts", "src/tab.ts"],
  outdir: target,
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  legalComments: "none",
  external: ["/engine/*"],
  banner: { js: "// Built from tab/src by `python tools/tasks.py tab`; do not edit." },
});
// The same for Node, where the role is held to Python's. Tests in several processes build at once: each file is renamed
// into its place, so that none of them reads what another has half written.
const fresh = mkdtempSync(join(absWorkingDir, "built-"));
await build({
  absWorkingDir,
  entryPoints: ["src/worker_role.ts", "src/frames.ts", "src/batches.ts", "src/protobuf.ts", "src/rest.ts", "src/graph.ts", "src/words.ts"],
  outdir: fresh,
  bundle: true,
  format: "esm",
  target: "es2022",
  outExtension: { ".js": ".mjs" },
});
const built = join(absWorkingDir, "built");
mkdirSync(built, { recursive: true });
for (const name of readdirSync(fresh)) renameSync(join(fresh, name), join(built, name));
rmdirSync(fresh);
