// Models: which version applications get, why, which ones were published, and how two of them compare.
"use strict";
((S) => {
  const { html, useState } = htmPreact;
  const Z95 = 1.96;

  /** Wilson's 95 % interval of a share measured on so many examples. */
  function interval(share, examples) {
    if (!S.known(share) || !(examples > 0)) return null;
    const square = Z95 ** 2 / examples;
    const middle = (share + square / 2) / (1 + square);
    const half = (Z95 / (1 + square)) * Math.sqrt((share * (1 - share)) / examples + square / (4 * examples));
    return [middle - half, middle + half];
  }

  function Interval({ version, low, high }) {
    const bounds = interval(version.accuracy, version.examples);
    if (!bounds) return null;
    const x = (share) => (100 * (share - low)) / (high - low);
    return html`
      <svg class="interval" viewBox="0 0 100 12" preserveAspectRatio="none" role="img" aria-label=${`between ${S.share(bounds[0])} and ${S.share(bounds[1])} with 95 % confidence`}>
        <path class="rule" d="M0 6H100" /><rect x=${x(bounds[0])} y="3" width=${Math.max(0.8, x(bounds[1]) - x(bounds[0]))} height="6" />
        <path class="tick" d=${`M${x(version.accuracy)} 0V12`} />
      </svg>`;
  }

  /** Is the difference of two shares more than chance? By two proportions, as if their examples were drawn apart. */
  function Comparison({ one, other }) {
    const names = [...new Set([...Object.keys(one.metrics ?? {}), ...Object.keys(other.metrics ?? {})])].sort();
    const [newer, older] = one.version > other.version ? [one, other] : [other, one];
    let verdict = "They were not judged by a share of right examples.";
    if (S.known(newer.accuracy) && S.known(older.accuracy) && newer.examples && older.examples) {
      const gap = newer.accuracy - older.accuracy;
      const spread = Z95 * Math.sqrt((newer.accuracy * (1 - newer.accuracy)) / newer.examples + (older.accuracy * (1 - older.accuracy)) / older.examples);
      const better = gap > 0 ? newer : older;
      verdict = Math.abs(gap) > spread
        ? `Version ${better.version} is better, and not by luck: ${Math.abs(gap * 100).toFixed(2)} points, where chance explains up to ${(spread * 100).toFixed(2)}.`
        : `It may be luck: they differ by ${Math.abs(gap * 100).toFixed(2)} points, and chance explains up to ${(spread * 100).toFixed(2)}.`;
    }
    return html`
      <${S.Panel} title=${`Version ${older.version} against version ${newer.version}`}>
        <p class="verdict">${verdict}</p>
        <table>
          <caption class="unseen">Metrics of both versions</caption>
          <thead><tr><th scope="col">metric</th><th scope="col" class="right">version ${older.version}</th><th scope="col" class="right">version ${newer.version}</th><th scope="col" class="right">change</th></tr></thead>
          <tbody>${names.map((name) => {
            const [before, after] = [older.metrics?.[name], newer.metrics?.[name]];
            const change = S.known(before) && S.known(after) ? after - before : null;
            return html`<tr key=${name}><th scope="row">${name}</th><td class="right">${S.metric(name, before)}</td><td class="right">${S.metric(name, after)}</td>
              <td class="right">${change === null ? S.NOTHING : `${change < 0 ? "−" : "+"}${S.isShare(name) ? `${Math.abs(change * 100).toFixed(2)} points` : S.number(Math.abs(change))}`}</td></tr>`;
          })}</tbody>
        </table>
        <p class="note">Reckoned as if each version had its own examples. Both saw the same ones, so a real difference shows a little sooner than this says.</p>
      <//>`;
  }

  /** What was served when, as far as published versions and events tell. */
  function servedWhen(job) {
    const turns = (job.versions ?? []).map((each) => ({ atS: each.at_s, version: each.version, back: false }));
    for (const event of job.events ?? []) {
      const version = event.kind === "version.reinstated" && /^version ([\d,]+)/u.exec(event.reason);
      if (version) turns.push({ atS: event.at_s, version: Number(version[1].replaceAll(",", "")), back: true });
    }
    return turns.sort((a, b) => a.atS - b.atS);
  }

  function Served({ job, atS }) {
    const turns = servedWhen(job);
    if (!turns.length) return null;
    const [first, whole] = [turns[0].atS, Math.max(1, atS - turns[0].atS)];
    return html`
      <h3>What was served, and when</h3>
      <ol class="served">${turns.map((turn, at) => {
        const end = turns[at + 1]?.atS ?? atS;
        const grow = Math.max(0.02, (end - turn.atS) / whole);
        return html`<li key=${turn.atS} class=${turn.back ? "back" : ""} ref=${(item) => item && (item.style.flexGrow = String(grow))} title=${`from ${S.clock(turn.atS)} for ${S.span(end - turn.atS)}`}>
          <b>${turn.back ? "↩ " : ""}${turn.version}</b><time>${S.clock(turn.atS)}</time></li>`;
      })}</ol>
      <p class="unseen">The first was served from ${S.clock(first)} on.</p>`;
  }

  function headline(job) {
    const name = job.name || "this job";
    if (!job.served && !S.isOpen(job)) return [`Nothing of ${name} was published.`, `It is ${job.state}: ${job.reason}`, "plain"];
    if (!job.served) return [`Nothing of ${name} is served yet.`, "A version is published when an evaluation finds it better.", "plain"];
    const { version, hold, reason, verdict } = job.served;
    const said = [reason, verdict?.replace(`: ${hold}`, "")].filter(Boolean).map((each) => `${each[0].toUpperCase()}${each.slice(1)}.`).join(" ");
    return [`Version ${version} of ${name} is served${hold ? "; publishing is held" : ""}.`, said, hold ? "attention" : "ok"];
  }

  function Models({ state, id }) {
    const [pair, setPair] = useState([]);
    const picked = S.pickJob(state, id);
    if (!picked) return html`<${S.Sentence} text="No job yet, so no model. shoal train TASK starts one." />`;
    const [found, job] = picked;
    const versions = (job.versions ?? []).toSorted((a, b) => b.version - a.version);
    const [head, rest, tone] = headline(job);
    const earlier = versions.find((each) => each.version < (job.served?.version ?? 0));
    const bounds = versions.map((each) => interval(each.accuracy, each.examples)).filter(Boolean).flat();
    const [low, high] = [Math.min(...bounds) - 0.005, Math.max(...bounds) + 0.005];
    const chosen = pair.filter((version) => versions.some((each) => each.version === version));
    const defaults = chosen.length === 2 ? chosen : [job.served?.version, ...versions.map((each) => each.version)].filter((each, at, all) => versions.some((v) => v.version === each) && all.indexOf(each) === at).slice(0, 2);
    const compared = defaults.map((version) => versions.find((each) => each.version === version));
    const toggle = (version) => setPair([...(chosen.length === 2 ? chosen : defaults).filter((each) => each !== version), version].slice(-2));
    return html`
      <${S.Sentence} text=${head} tone=${tone}>
        ${rest && html`<p>${rest}</p>`}
        <div class="beside"><${S.JobPicker} state=${state} chosen=${found} screen="models" /></div>
      <//>
      <div class="columns models">
        <${S.Panel} title=${`Published versions of ${job.name || found}`} name="wide" aside=${html`<${S.Act} act="publish" on=${{ job: found }} word="Publish the newest" />`}>
          ${versions.length === 0
            ? html`<p class="empty">None yet.</p>`
            : html`<table role="table" class="versions">
                <caption class="unseen">Published versions, newest first</caption>
                <thead role="rowgroup"><tr role="row">${["version", "right, with 95 % interval", "published, and why", ""].map((text) => html`<th role="columnheader" scope="col">${text || html`<span class="unseen">acts</span>`}</th>`)}</tr></thead>
                <tbody role="rowgroup">${versions.map((each) => {
                  const isServed = each.version === job.served?.version;
                  const withdrawn = !isServed && job.served?.hold && each.version > job.served.version && each === versions[0];
                  return html`<tr role="row" key=${each.version}>
                    <th role="rowheader" scope="row"><b>${each.version}</b> ${isServed && html`<span class="tag good">● served</span>`}${withdrawn && html`<span class="tag bad">✕ withdrawn</span>`}<small>epoch ${each.epoch ?? S.NOTHING}, ${S.bytes(each.size_bytes)}</small></th>
                    <td role="cell" class="judged"><b>${S.share(each.accuracy, 2)}</b><${Interval} version=${each} low=${low} high=${high} /><small>${Object.entries(each.metrics ?? {}).filter(([name]) => name !== "accuracy").map(([name, value]) => `${name} ${S.metric(name, value)}`).join(", ")}</small></td>
                    <td role="cell"><time title=${S.moment(each.at_s)}>${S.clock(each.at_s)}</time><small>${each.reason}</small></td>
                    <td role="cell" class="acts"><button type="button" aria-pressed=${String(defaults.includes(each.version))} aria-label=${`compare version ${each.version}`} onClick=${() => toggle(each.version)}>compare</button>
                      ${!isServed && html`<${S.Act} act="roll-back" on=${{ job: found, version: each.version }} word="Serve" />`}</td></tr>`;
                })}</tbody>
              </table>`}
          <${Served} job=${job} atS=${state.at_s} />
          <p class="note">To publish the newest in a terminal:</p>
          <${S.CommandLine} text=${S.lineOf("publish", { job: found })} />
          ${earlier && html`<p class="note">To serve version ${earlier.version} again in a terminal:</p>
          <${S.CommandLine} text=${S.lineOf("roll-back", { job: found, version: earlier.version })} />`}
        <//>
        ${compared.length === 2 && html`<${Comparison} one=${compared[0]} other=${compared[1]} />`}
      </div>`;
  }

  S.Models = Models;
})((window.Shoal ??= {}));
