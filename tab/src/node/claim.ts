// One process uses a device's key at a time: the manager takes two for a copy of it.

import { readFileSync, rmSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { ownFolder } from "./key_store.ts";

/** Claim a device's folder; what is returned gives it back. Fails if a living process has it. */
export async function claim(folder: string): Promise<() => void> {
  await ownFolder(folder);
  const path = join(folder, "process");
  const write = () => writeFileSync(path, String(process.pid), { flag: "wx", mode: 0o600 });
  try {
    write();
  } catch (error) {
    if ((error as { code?: string }).code !== "EEXIST") throw error;
    const other = Number(readFileSync(path, "utf8"));
    if (isAlive(other)) throw new Error(`process ${other} already trains as this device; choose another --home for a second one`);
    rmSync(path, { force: true });
    write();
  }
  return () => rmSync(path, { force: true });
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
