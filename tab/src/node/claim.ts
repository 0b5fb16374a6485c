// One process uses a device's key at a time: the manager takes two for a copy of it.

import { constants, copyFileSync, linkSync, readFileSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ownFolder } from "./key_store.ts";

/** Claim a device's folder; what is returned gives it back. Fails if a living process has it. */
export async function claim(folder: string): Promise<() => void> {
  await ownFolder(folder);
  const path = join(folder, "process");
  // Written before it has the name that others look at: nobody reads half of it.
  const mine = `${path}.${process.pid}`;
  writeFileSync(mine, String(process.pid), { mode: 0o600 });
  try {
    while (!isPut(mine, path)) removeDead(path, `${mine}.dead`);
  } finally {
    rmSync(mine, { force: true });
  }
  return () => rmSync(path, { force: true });
}

/** Remove the claim of a dead process; fails if it is of a living one. */
function removeDead(path: string, aside: string): void {
  if (!isThere(() => refuseAlive(path))) return;
  // Of two that find a dead process, the first removes its file. The other may move what the first put there since, and gives it back.
  if (!isThere(() => renameSync(path, aside))) return;
  try {
    refuseAlive(aside);
  } catch (error) {
    isPut(aside, path);
    throw error;
  } finally {
    rmSync(aside, { force: true });
  }
}

function refuseAlive(path: string): void {
  const other = Number(readFileSync(path, "utf8"));
  if (isAlive(other)) throw new Error(`process ${other} already trains as this device; choose another --home for a second one`);
}

/** Give a file a second name, whole; false: there is a file of that name. */
function isPut(from: string, to: string): boolean {
  return [linkSync, (a: string, b: string) => copyFileSync(a, b, constants.COPYFILE_EXCL)].some((put, i) => {
    try {
      put(from, to);
      return true;
    } catch (error) {
      // Where files have one name only, it is copied.
      if ((error as { code?: string }).code !== "EEXIST" && i) throw error;
      return false;
    }
  });
}

/** Do something with a file; false: it is gone. */
function isThere(use: () => void): boolean {
  try {
    use();
    return true;
  } catch (error) {
    if ((error as { code?: string }).code !== "ENOENT") throw error;
    return false;
  }
}

function isAlive(pid: number): boolean {
  if (!(pid > 0)) return false;
  try {
    process.kill(pid, 0);
    return pid !== process.pid;
  } catch (error) {
    return (error as { code?: string }).code === "EPERM";
  }
}
