// Built from tab/src by `python tools/tasks.py tab`; do not edit.
"use strict";
(() => {
  // src/service.ts
  var FILES = ["/", "/page.css", "/page.js", "/tab.js", "/icon.svg", "/icon-180.png", "/icon-192.png", "/icon-512.png", "/manifest.webmanifest"];
  var NAME = "shoal-page";
  var NETWORK_S = 4;
  var scope = self;
  scope.addEventListener("install", (event) => event.waitUntil(keepAll()));
  scope.addEventListener("activate", (event) => event.waitUntil(scope.clients.claim()));
  scope.addEventListener("fetch", (event) => {
    const { origin, pathname } = new URL(event.request.url);
    if (event.request.method !== "GET" || origin !== location.origin || !FILES.includes(pathname)) return;
    event.respondWith(newest(event.request, pathname));
  });
  async function keepAll() {
    const cache = await caches.open(NAME);
    await cache.addAll(FILES);
    await scope.skipWaiting();
  }
  async function newest(request, pathname) {
    const cache = await caches.open(NAME);
    const kept = await cache.match(pathname);
    const fetched = fetch(request).then(async (answer) => {
      if (answer.ok) await cache.put(pathname, answer.clone());
      return answer;
    });
    if (!kept) return fetched;
    const late = new Promise((resolve) => setTimeout(() => resolve(kept), NETWORK_S * 1e3));
    return Promise.race([fetched.catch(() => kept), late]);
  }
})();
