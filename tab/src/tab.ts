// The thread of the page that is a device: so the page stays quick. It hears what its user says, and tells how it goes.

import { Device } from "./device.ts";
import { webParts } from "./web/index.ts";

export type { Shown } from "./device.ts";

/** What the page says. */
export type Said =
  | { say: "look"; secret: string }
  | { say: "join"; secret: string; wanted: string; about: string }
  | { say: "start"; about: string }
  | { say: "take" }
  | { say: "later"; megabytes: number }
  | { say: "pause"; why: string }
  | { say: "graphics"; isWanted: boolean }
  | { say: "stop" }
  | { say: "forget" };

const device = new Device(webParts(location.origin));
device.on("state", (shown) => postMessage(shown));
device.on("record", ({ kind, reason }) => console.info(`${kind}: ${reason}`));

async function hear(said: Said): Promise<unknown> {
  switch (said.say) {
    case "look": return device.look(said.secret);
    case "join": return device.join(said.secret, said.wanted, said.about);
    case "start": return device.start(said.about);
    case "take": return device.take();
    case "later": return device.later(said.megabytes);
    case "pause": return device.pause(said.why);
    case "graphics": return device.graphics(said.isWanted);
    case "stop": return device.stop();
    case "forget": return device.forget();
  }
}

addEventListener("message", ({ data }) => void hear(data as Said));
