// Builds the page's two programs into the package: `node build.mjs [FOLDER]`. What it writes is in the repository, and
// `python tools/tasks.py tab-check` fails where it is not what these sources give.

import { dirname, resolve } from "node:path";
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
// The same for Node, where the role is held to Python's.
await build({ absWorkingDir, entryPoints: ["src/worker_role.ts", "src/frames.ts", "src/batches.ts", "src/protobuf.ts", "src/rest.ts", "src/graph.ts", "src/words.ts"], outdir: "built", bundle: true, format: "esm", target: "es2022", outExtension: { ".js": ".mjs" } });
