// The service worker of the page: keeps the page's own files, so that it opens without a network. It keeps nothing of a job,
// and answers for no other address.

/** The page's own files; the engine's come when there is work. */
const FILES = ["/", "/page.css", "/page.js", "/tab.js", "/icon.svg", "/icon-180.png", "/icon-192.png", "/icon-512.png", "/manifest.webmanifest"];
const NAME = "shoal-page";
/** A network that does not answer for this long counts as none. */
const NETWORK_S = 4;

interface Lasting extends globalThis.Event { waitUntil(work: Promise<unknown>): void }
interface Asked extends Lasting { request: Request; respondWith(answer: Promise<Response>): void }
interface Scope {
  skipWaiting(): Promise<void>;
  clients: { claim(): Promise<void> };
  addEventListener(name: "install" | "activate", hear: (event: Lasting) => void): void;
  addEventListener(name: "fetch", hear: (event: Asked) => void): void;
}
const scope = self as unknown as Scope;

scope.addEventListener("install", (event) => event.waitUntil(keepAll()));
scope.addEventListener("activate", (event) => event.waitUntil(scope.clients.claim()));
scope.addEventListener("fetch", (event) => {
  const { origin, pathname } = new URL(event.request.url);
  if (event.request.method !== "GET" || origin !== location.origin || !FILES.includes(pathname)) return;
  event.respondWith(newest(event.request, pathname));
});

async function keepAll(): Promise<void> {
  const cache = await caches.open(NAME);
  await cache.addAll(FILES);
  await scope.skipWaiting();
}

/** From the manager, so that an upgrade is seen at once, or what was kept if it does not answer. */
async function newest(request: Request, pathname: string): Promise<Response> {
  const cache = await caches.open(NAME);
  const kept = await cache.match(pathname);
  const fetched = fetch(request).then(async (answer) => {
    if (answer.ok) await cache.put(pathname, answer.clone());
    return answer;
  });
  if (!kept) return fetched;
  const late = new Promise<Response>((resolve) => setTimeout(() => resolve(kept), NETWORK_S * 1000));
  return Promise.race([fetched.catch(() => kept), late]);
}
