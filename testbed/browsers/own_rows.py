"""A script that reads a person's rows, and what belongs to them, from a browser's store."""

from __future__ import annotations

#: A promise of: `parts`, the number of stored parts; `seen`, rows seen per job; `accounts` of private jobs; `own`, the
#: device's own parts of models, as they are kept; and the bytes of the `last` part, by column.
KEPT = """new Promise((resolve, reject) => {
  const opening = indexedDB.open("shoal-rows");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const stores = opening.result.transaction(["parts", "bytes", "notes"]), found = {};
    stores.oncomplete = () => (opening.result.close(), resolve(found));
    const ask = (name, request, read) => (request.onsuccess = () => (found[name] = read(request.result)));
    const having = (name) => (texts) => texts.map((text) => JSON.parse(text || "{}")).filter((note) => name in note);
    const plain = (part) => Object.fromEntries(Object.entries(part).map(([name, bytes]) => [name, [...bytes]]));
    ask("parts", stores.objectStore("parts").count(), (count) => count);
    ask("seen", stores.objectStore("notes").get("seen"), (text) => JSON.parse(text ?? '{"counts":{}}').counts);
    ask("accounts", stores.objectStore("notes").getAll(), having("epsilon"));
    ask("own", stores.objectStore("notes").getAll(), having("layout"));
    ask("last", stores.objectStore("bytes").getAll(), (all) => plain(all.at(-1) ?? {}));
  };
})"""  # plain: ok
