// The devices: a row each, with mark, reason, lane, speed and bytes. If they are many: those in trouble, then a band.
"use strict";
((S) => {
  const { html, useState } = htmPreact;
  const SINGLE_MAX = 24;
  const TROUBLED_MAX = 12;
  const LANE_S = 30;
  const SLOW = 1.25;

  /** Higher is worse; 0: nothing is wrong. */
  function trouble(node) {
    if (node.state === "lost") return 5;
    if (node.state === "suspect" || node.fails) return 4;
    if (node.standing === "pending" || node.standing === "revoked") return 3;
    if (node.slowness >= 1.5) return 2;
    return node.standing ? 1 : 0;
  }

  const worstFirst = (a, b) => trouble(b[1]) - trouble(a[1]) || (b[1].slowness ?? 0) - (a[1].slowness ?? 0) || S.byName(a, b);

  /** Mark, word and reason of what a device does now. */
  function now(node) {
    if (node.state === "lost") return ["lost", "lost", node.reason || node.why];
    const word = S.markOf(node.does).word;
    if (node.standing) return [node.does, node.standing, node.reason];
    if (node.state === "suspect") return [node.does, "silent", node.reason || `no heartbeat for ${S.span(node.heard_s)}`];
    if (node.fails) return [node.does, "fails", node.fails];
    return [node.does, word, node.why];
  }

  /** `trains version 9; twice as slow` says by itself that it trains. */
  function worded(word, why) {
    if (!why?.startsWith(word)) return [word, why];
    const [head, ...rest] = why.split("; ");
    return [head, rest.join("; ")];
  }

  const Facts = ({ name, node }) => html`
    <dl class="facts">
      ${[
        ["address", node.address],
        ["manager", node.manager],
        ["machine", [node.machine, S.known(node.cores) && S.plural(node.cores, "core"), S.known(node.memory_mb) && S.bytes(node.memory_mb * 1e6)].filter(Boolean).join(", ")],
        ["load", S.known(node.load) && `${S.number(node.load)}; ${S.bytes(node.memory_free_mb * 1e6)} of memory free`],
        ["last heartbeat", S.known(node.heard_s) && node.heard_s >= 0 && `${S.span(node.heard_s)} ago`],
        ["role", node.role],
        ["job", node.job && html`<a href=${`#/job/${encodeURIComponent(node.job)}`}>${node.job}</a>`],
        ["batches", S.known(node.batches) && node.batches.toLocaleString("en")],
        ["manager says", node.reason],
      ].filter(([, text]) => text).map(([label, text]) => html`<div key=${label}><dt>${label}</dt><dd>${text}</dd></div>`)}
    </dl>
    <div class="acts">
      ${node.standing === "pending" && html`<${S.Act} act="approve" on=${{ node: name }} />`}
      ${node.standing === "drained" ? html`<${S.Act} act="undrain" on=${{ node: name }} />` : html`<${S.Act} act="drain" on=${{ node: name }} />`}
      <${S.CommandLine} text=${S.lineOf(node.standing === "pending" ? "approve" : node.standing === "drained" ? "undrain" : "drain", { node: name })} />
    </div>`;

  /** ``job``: the name of its job, where several are open. */
  function Row({ name, node, job, spans, toS, fastest, open, toggle }) {
    const [does, ...words] = now(node);
    const [word, why] = worded(...words);
    const bad = node.state !== "alive" || Boolean(node.fails);
    const slow = node.slowness >= SLOW;
    const speed = S.known(node.lease_s) && node.lease_s > 0 && node.state !== "lost";
    return html`
      <tr role="row" class="device ${bad ? "bad" : ""}">
        <th role="rowheader" scope="row" class="who">
          <button type="button" class="plain" data-device="" aria-expanded=${String(open)} onClick=${toggle}>
            <${S.Mark} does=${does} /><span><b>${name}</b><small>${[node.machine, S.known(node.cores) && S.plural(node.cores, "core")].filter(Boolean).join(", ") || "unknown machine"}</small>${job && html`<small class="of">${job}</small>`}</span>
          </button>
        </th>
        <td role="cell" class="now"><b>${word}</b><small>${why}</small></td>
        <td role="cell" class="lane"><${S.Lane} spans=${spans} fromS=${toS - LANE_S} toS=${toS} /></td>
        <td role="cell" class="speed">${speed
          ? html`<span>${S.lease(node.lease_s)}</span>
              <svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true"><rect class="back" width="100" height="4" /><rect class=${slow ? "slow" : ""} width=${Math.max(3, (100 * fastest) / node.lease_s).toFixed(1)} height="4" /></svg>
              <small>${slow ? `${node.slowness.toFixed(1)}× slower` : `${S.lease(node.train_s)} trains`}</small>`
          : S.NOTHING}</td>
        <td role="cell" class="bytes">${S.known(node.bytes_up)
          ? html`<span><i aria-hidden="true">↑</i><span class="unseen">up </span>${S.bytes(node.bytes_up)}</span> <span><i aria-hidden="true">↓</i><span class="unseen">down </span>${S.bytes(node.bytes_down)}</span>`
          : S.NOTHING}</td>
      </tr>
      ${open && html`<tr role="row" class="opened"><td role="cell" colspan="5"><${Facts} name=${name} node=${node} /></td></tr>`}`;
  }

  function Table({ rows, state, lanes, caption }) {
    const [opened, setOpened] = useState(null);
    const several = Object.values(state.jobs ?? {}).filter(S.isOpen).length > 1;
    const fastest = Math.min(...rows.map(([, node]) => node.lease_s).filter((each) => each > 0));
    return html`
      <table role="table" class="devices">
        <caption class="unseen">${caption}</caption>
        <thead role="rowgroup"><tr role="row">
          ${["device", "now, and why", `last ${LANE_S} s`, "a lease takes", "moved"].map((head) => html`<th role="columnheader" scope="col">${head}</th>`)}
        </tr></thead>
        <tbody role="rowgroup">
          ${rows.map(([name, node]) => html`<${Row} key=${name} name=${name} node=${node} job=${several && node.job ? S.jobName(state, node.job) : ""} spans=${lanes.get(name) ?? []} toS=${state.at_s}
            fastest=${fastest} open=${opened === name} toggle=${() => setOpened(opened === name ? null : name)} />`)}
        </tbody>
      </table>`;
  }

  // Very many ----------------------------------------------------------------------------------------------

  const ROW_PX = 40;
  const VIEW_PX = 440;

  /** A table of a thousand rows that draws the ones in view. */
  function Virtual({ rows }) {
    const [top, setTop] = useState(0);
    const first = Math.max(0, Math.floor(top / ROW_PX) - 4);
    const last = Math.min(rows.length, first + Math.ceil(VIEW_PX / ROW_PX) + 8);
    const spacer = (count) => count > 0 && html`<tr role="presentation"><td role="presentation" colspan="4" ref=${(cell) => cell && (cell.style.height = `${count * ROW_PX}px`)}></td></tr>`;
    return html`
      <div class="virtual" tabindex="0" role="region" aria-label="All devices" onScroll=${(event) => setTop(event.currentTarget.scrollTop)}>
        <table role="table" aria-rowcount=${rows.length + 1}>
          <caption class="unseen">All devices, those in trouble first</caption>
          <thead role="rowgroup"><tr role="row" aria-rowindex="1">${["device", "now", "why", "lease time"].map((head) => html`<th role="columnheader" scope="col">${head}</th>`)}</tr></thead>
          <tbody role="rowgroup">
            ${spacer(first)}
            ${rows.slice(first, last).map(([name, node], at) => {
              const [does, word, why] = now(node);
              return html`<tr role="row" key=${name} aria-rowindex=${first + at + 2} class=${node.state !== "alive" || node.fails ? "bad" : ""}>
                <th role="rowheader" scope="row"><${S.Mark} does=${does} />${name}</th><td role="cell">${word}</td><td role="cell" class="clip">${why}</td><td role="cell">${S.lease(node.lease_s)}</td></tr>`;
            })}
            ${spacer(rows.length - last)}
          </tbody>
        </table>
      </div>`;
  }

  function Many({ rows, state, lanes }) {
    const [all, setAll] = useState(false);
    const sorted = rows.sort(worstFirst);
    const troubled = sorted.filter(([, node]) => trouble(node)).slice(0, TROUBLED_MAX);
    const shown = new Set(troubled.map(([name]) => name));
    const rest = sorted.filter(([name]) => !shown.has(name));
    const doing = new Map();
    for (const [, node] of rest) doing.set(node.does, (doing.get(node.does) ?? 0) + 1);
    const title = `${shown.size ? "the other " : ""}${S.plural(rest.length, "device")}, last ${LANE_S} s`;
    return html`
      ${troubled.length > 0 && html`<h3>In trouble</h3><${Table} rows=${troubled} state=${state} lanes=${lanes} caption="Devices in trouble" />`}
      <h3>${title[0].toUpperCase() + title.slice(1)}</h3>
      <${S.Band} lanes=${rest.map(([name]) => lanes.get(name) ?? [])} fromS=${state.at_s - LANE_S} toS=${state.at_s} label=${title} />
      <ul class="legend counted">${[...doing].sort((a, b) => b[1] - a[1]).map(([does, count]) => html`<li key=${does}><${S.Mark} does=${does} />${S.markOf(does).word} <b>${count.toLocaleString("en")}</b></li>`)}</ul>
      <button type="button" class="more" aria-expanded=${String(all)} onClick=${() => setAll(!all)}>${all ? "hide the table" : `show all ${rows.length.toLocaleString("en")} devices`}</button>
      ${all && html`<${Virtual} rows=${sorted} />`}`;
  }

  function Devices({ state }) {
    const rows = Object.entries(state.nodes ?? {}).sort(S.byName);
    const lanes = S.lanes(state.at_s - LANE_S, state.at_s);
    if (!rows.length) return html`<p class="empty">No device has joined yet. <code>shoal token create</code> prints the line that a device runs.</p>`;
    return rows.length > SINGLE_MAX
      ? html`<${Many} rows=${rows} state=${state} lanes=${lanes} />`
      : html`<${Table} rows=${rows} state=${state} lanes=${lanes} caption="Devices" />`;
  }

  Object.assign(S, { Devices, trouble, worstFirst, SINGLE_MAX });
})((window.Shoal ??= {}));
