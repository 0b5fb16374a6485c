// The cluster: what is wrong, in a sentence; then devices, where updates meet, jobs, and what happened.
"use strict";
((S) => {
  const { html } = htmPreact;

  /** One thing that leader and manager both tell is one event. Newest first. */
  function events(...lists) {
    const seen = new Set();
    const found = [];
    for (const each of lists.flat()) {
      const about = each.kind === "node" && /^(\S+) is (suspect|lost): (.*)$/su.exec(each.reason ?? "");
      const event = about ? { ...each, kind: about[2], reason: `${about[1]}: ${about[3]}` } : each;
      const key = `${event.kind} ${Math.round(event.at_s)} ${event.reason}`;
      if (!seen.has(key)) found.push({ ...event, key });
      seen.add(key);
    }
    return found.sort((a, b) => b.at_s - a.at_s || b.seq - a.seq);
  }

  const best = (job) => {
    const metrics = Object.entries(job.metrics ?? {});
    return metrics.find(([name]) => name === "accuracy") ?? metrics.find(([, each]) => !each.lower) ?? metrics[0] ?? null;
  };

  const Jobs = ({ state }) => {
    const jobs = Object.entries(state.jobs ?? {}).sort(S.byName);
    if (!jobs.length) return html`<p class="empty">No job yet. <code>shoal train TASK</code> starts one.</p>`;
    return html`
      <table class="jobs">
        <caption class="unseen">Jobs</caption>
        <thead><tr>${["job", "state", "measured", "version", "for"].map((head, at) => html`<th scope="col" class=${at > 1 ? "right" : ""}>${head}</th>`)}</tr></thead>
        <tbody>${jobs.map(([id, job]) => {
          const shown = best(job);
          return html`<tr key=${id}>
            <th scope="row"><a href=${`#/job/${encodeURIComponent(id)}`}>${job.name || id}</a><small>${id}</small></th>
            <td><span class="state tone-${job.tone || "ok"}">${job.state}</span></td>
            <td class="right">${shown ? html`${S.metric(shown[0], shown[1].value, 1)}<small>${shown[0]}</small>` : S.NOTHING}</td>
            <td class="right">${job.progress?.version ?? S.NOTHING}</td>
            <td class="right">${S.span(job.progress?.seconds)}</td></tr>`;
        })}</tbody>
      </table>`;
  };

  function Counts({ state }) {
    const nodes = Object.values(state.nodes ?? {});
    const parts = ["alive", "suspect", "dormant", "lost"].map((each) => [each, nodes.filter((node) => node.state === each).length]);
    return html`<span class="dim">${parts.filter(([, count]) => count).map(([word, count]) => `${count.toLocaleString("en")} ${word}`).join(", ")}</span>`;
  }

  function Cluster({ state }) {
    const cluster = state.cluster;
    const picked = S.pickJob(state, null);
    const happened = events(...Object.values(state.jobs ?? {}).map((job) => job.events ?? []));
    const kind = picked?.[1].topology?.kind;
    return html`
      <${S.Sentence} text=${cluster.sentence} tone=${cluster.tone} />
      <div class="columns cluster">
        <div class="stacked">
          <${S.Panel} title="Devices" aside=${html`<${Counts} state=${state} /><${S.Legend} />`}><${S.Devices} state=${state} /><//>
          <${S.Panel} title="What happened, and why"><${S.Events} events=${happened} most=${7} /><//>
        </div>
        <div class="stacked">
          <${S.Panel} title="Where updates meet" aside=${kind && html`<span class="dim">${kind}</span>`}>
            <${S.Drawing} state=${state} job=${picked?.[1]} />
          <//>
          <${S.Panel} title="Jobs"><${Jobs} state=${state} /><//>
        </div>
      </div>`;
  }

  Object.assign(S, { Cluster, eventsOf: events, bestMetric: best });
})((window.Shoal ??= {}));
