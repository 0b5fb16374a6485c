"use strict";
// Shows the sentence of the cluster, and nothing else.
const told = document.getElementById("sentence");
const stream = new EventSource("/api/stream");
const show = (event) => {
  const cluster = JSON.parse(event.data).cluster;
  if (cluster && cluster.sentence) told.textContent = cluster.sentence;
};
stream.addEventListener("state", show);
stream.addEventListener("patch", show);
