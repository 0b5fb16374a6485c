// The cluster: what is wrong, in a sentence; then devices, where updates are summed, jobs, and what happened.
"use strict";
((S) => {
  const { html, useState } = htmPreact;

  /** The events of all lists, newest first. */
  function events(...lists) {
    const found = lists.flat().map((event) => ({ ...event, key: `${event.kind} ${event.seq} ${event.at_s} ${event.reason}` }));
    return found.sort((a, b) => b.at_s - a.at_s || b.seq - a.seq);
  }

  const best = (job) => {
    const metrics = Object.entries(job.metrics ?? {});
    return metrics.find(([name]) => name === "accuracy") ?? metrics.find(([, each]) => !each.lower) ?? metrics[0] ?? null;
  };

  /** A line per job, where there are several. Of the job that the sentence above tells of, the beginning will do. */
  function JobLines({ jobs, told }) {
    if (jobs.length < 2) return null;
    const said = (job) => (told.includes(job.sentence) ? S.parted(job.sentence)[0] : job.sentence);
    return html`
      <ul class="job-lines" aria-label="Jobs, a line each">${jobs.map(([id, job]) => html`
        <li key=${id} class="tone-${job.tone || "ok"}"><${S.Tone} tone=${job.tone || "ok"} />
          <span><span class="said">${S.coded(said(job))}</span> <a href=${`#/job/${encodeURIComponent(id)}`}>${id}</a></span></li>`)}
      </ul>`;
  }

  function JobRow({ id, job }) {
    const shown = best(job);
    return html`<tr>
      <th scope="row"><a href=${`#/job/${encodeURIComponent(id)}`}>${job.name || id}</a><small>${id}${job.manager && ` at ${job.manager}`}</small></th>
      <td><span class="state tone-${job.tone || "ok"}">${job.state}</span></td>
      <td class="right">${shown ? html`${S.metric(shown[0], shown[1].value, 1)}<small>${shown[0]}</small>` : S.NOTHING}</td>
      <td class="right">${job.progress?.version ?? S.NOTHING}</td>
      <td class="right">${S.span(job.progress?.seconds)}</td></tr>`;
  }

  function Jobs({ now, ended, unlisted }) {
    const [all, setAll] = useState(false);
    if (!now.length) return html`<p class="empty">No job yet. <code>shoal train TASK</code> starts one.</p>`;
    const failed = ended.filter(([, job]) => job.state === "failed").length;
    const words = `${S.plural(ended.length, "ended job")}${failed ? `, ${failed} of them failed` : ""}`;
    return html`
      <table class="jobs">
        <caption class="unseen">Jobs</caption>
        <thead><tr>${["job", "state", "measured", "version", "for"].map((head, at) => html`<th scope="col" class=${at > 1 ? "right" : ""}>${head}</th>`)}</tr></thead>
        <tbody>${[...now, ...(all ? ended : [])].map(([id, job]) => html`<${JobRow} key=${id} id=${id} job=${job} />`)}</tbody>
      </table>
      ${ended.length > 0 && html`<button type="button" class="more" aria-expanded=${String(all)} onClick=${() => setAll(!all)}>
        ${all ? "hide those that ended" : `show ${words}`}
      </button>`}
      ${unlisted > 0 && html`<p class="dim">${S.plural(unlisted, "more ended job")}: <code>shoal jobs --ended</code> lists them.</p>`}`;
  }

  function Counts({ state }) {
    const nodes = Object.values(state.nodes ?? {});
    const parts = ["alive", "suspect", "dormant", "elsewhere", "lost"].map((each) => [each, nodes.filter((node) => node.state === each).length]);
    return html`<span class="dim">${parts.filter(([, count]) => count).map(([word, count]) => `${count.toLocaleString("en")} ${word}`).join(", ")}</span>`;
  }

  function Cluster({ state }) {
    const cluster = state.cluster;
    const { now, ended } = S.partedJobs(state);
    const drawn = now.filter(([, job]) => S.isOpen(job));
    const named = (job) => (each) => (now.length > 1 ? { ...each, reason: `${job.name}: ${each.reason}` } : each);
    const happened = events(...now.map(([, job]) => events(job.events ?? []).map(named(job))));
    const kinds = drawn.filter(([, job]) => job.topology?.kind).map(([, job]) => (drawn.length > 1 ? `${job.name}: ${job.topology.kind}` : job.topology.kind));
    return html`
      <${S.Sentence} text=${cluster.sentence} tone=${cluster.tone} />
      <${JobLines} jobs=${now} told=${cluster.sentence} />
      <div class="columns cluster">
        <div class="stacked">
          <${S.Panel} title="Devices" aside=${html`<${Counts} state=${state} /><${S.Legend} />`}><${S.Devices} state=${state} /><//>
          <${S.Panel} title="What happened, and why"><${S.Events} events=${happened} most=${7} /><//>
        </div>
        <div class="stacked">
          <${S.Panel} title="Where updates are summed" aside=${kinds.length > 0 && html`<span class="dim">${kinds.join(", ")}</span>`}>
            <${S.Drawing} state=${state} jobs=${drawn} />
          <//>
          <${S.Panel} title="Jobs"><${Jobs} now=${now} ended=${ended} unlisted=${cluster.ended_unlisted ?? 0} /><//>
        </div>
      </div>`;
  }

  Object.assign(S, { Cluster, eventsOf: events, bestMetric: best });
})((window.Shoal ??= {}));
