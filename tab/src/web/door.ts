// The way of a browser to a door: its own page's, or that of another site which lets this page in.

import type { Door, Socket } from "../parts.ts";

export class WebDoor implements Door {
  readonly origin: string;

  constructor(origin: string) {
    this.origin = new URL(origin).origin;
  }

  /** The body is plain text to the browser, so that it asks nothing before a request to another site. */
  post(path: string, body: string): Promise<Response> {
    return fetch(this.origin + path, { method: "POST", body });
  }

  socket(path: string): Socket {
    return new WebSocket(this.origin.replace(/^http/, "ws") + path) as unknown as Socket;
  }
}
