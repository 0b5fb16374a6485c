// What a device in Node keeps on its disk.

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { FolderBlobs, FolderKeys } from "../dist/node.js";

function scratch(t) {
  const folder = mkdtempSync(join(tmpdir(), "shoal-worker-"));
  t.after(() => rmSync(folder, { recursive: true }));
  return folder;
}

const modeOf = (path) => statSync(path).mode & 0o777;

test("a key comes back, and nobody else may read it", async (t) => {
  const home = join(scratch(t), "door");
  const keys = new FolderKeys(home);
  assert.equal(await keys.load(), null);
  const pair = await crypto.subtle.generateKey({ name: "ECDSA", namedCurve: "P-256" }, keys.isExtractable, ["sign", "verify"]);
  await keys.save({ node: "attic", cluster: "shoal", certificate_pem: "PEM", key: pair.privateKey });
  assert.deepEqual([modeOf(home), modeOf(join(home, "identity.json"))], [0o700, 0o600]);
  const found = await new FolderKeys(home).load();
  assert.deepEqual([found.node, found.cluster, found.certificate_pem, found.key.extractable], ["attic", "shoal", "PEM", false]);
  const sign = { name: "ECDSA", hash: "SHA-256" }, text = new TextEncoder().encode("text");
  assert.ok(await crypto.subtle.verify(sign, pair.publicKey, await crypto.subtle.sign(sign, found.key, text), text));
  await keys.forget();
  assert.equal(await keys.load(), null);
});

test("files of jobs are kept by their hashes, across restarts", async (t) => {
  const folder = join(scratch(t), "blobs");
  const blob = new Uint8Array(1000).fill(7), sha256 = createHash("sha256").update(blob).digest("hex");
  assert.equal(await new FolderBlobs(folder).get(sha256), null);
  await new FolderBlobs(folder).put(sha256, blob);
  assert.deepEqual(await new FolderBlobs(folder).get(sha256), blob);
  assert.equal(modeOf(join(folder, sha256)), 0o600);
  await new FolderBlobs(folder).drop(sha256);
  assert.equal(await new FolderBlobs(folder).get(sha256), null);
  // A name that leaves the folder is no name of a file.
  await assert.rejects(new FolderBlobs(folder).get("../identity.json"), /hexadecimal/);
});
