// What npm packs: the programs, their types and a README, and no sources, tests or other people's packages.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { test } from "node:test";

const here = fileURLToPath(new URL("..", import.meta.url));
const described = JSON.parse(readFileSync(`${here}/package.json`, "utf8"));

test("the package has what its exports name", () => {
  const [{ files }] = JSON.parse(execFileSync("npm", ["pack", "--dry-run", "--json", "--ignore-scripts"], { cwd: here, encoding: "utf8" }));
  const packed = files.map(({ path }) => path);
  const named = Object.values(described.exports).flatMap((each) => Object.values(each)).concat(Object.values(described.bin));
  for (const path of [...named.map((each) => each.replace("./", "")), "README.md"]) assert.ok(packed.includes(path), path);
  assert.deepEqual(packed.filter((path) => !/^(dist\/|README\.md$|package\.json$|LICENSE$)/.test(path)), []);
});

test("a page needs nothing of Node, and loads no package of others by itself", () => {
  const program = readFileSync(`${here}/dist/index.js`, "utf8");
  assert.deepEqual([...program.matchAll(/^import .* from "(.*)"/gm)].map(([, name]) => name), []);
});
