// Small parts that every screen uses: sentence, panel, figure, table for a picture, list of events.
"use strict";
((S) => {
  const { html, useEffect, useRef, useState } = htmPreact;
  const SAY_EVERY_MS = 10000;

  /** Tells a screen reader, at most once in ten seconds, and the newest only. */
  function Status({ text }) {
    const [said, say] = useState(text);
    const last = useRef(Date.now());
    useEffect(() => {
      if (text === said) return undefined;
      const tell = () => {
        last.current = Date.now();
        say(text);
      };
      const timer = setTimeout(tell, Math.max(0, last.current + SAY_EVERY_MS - Date.now()));
      return () => clearTimeout(timer);
    }, [text, said]);
    return html`<p class="unseen" role="status">${said}</p>`;
  }

  /** The first sentence, or its first clause where it is long; and the rest. */
  function parted(text) {
    const cut = /^(.{1,90}?)\.(?:\s+(.*))?$/su.exec(text) ?? /^(.{1,90}?)[;:]\s+(.*)$/su.exec(text);
    return cut ? [cut[1], cut[2] ?? ""] : [text, ""];
  }

  /** Text in which commands stand between backticks. */
  const coded = (text) => text.split("`").map((part, at) => (at % 2 ? html`<code>${part}</code>` : part));

  const SYMBOLS = { ok: "✓", attention: "!", trouble: "✕", plain: "·" };
  const Tone = ({ tone }) => html`<span class="tone" aria-hidden="true">${SYMBOLS[tone] ?? SYMBOLS.plain}</span>`;

  /** First a sentence: its beginning is large; the rest explains. Plain: there is nothing to judge. */
  function Sentence({ text, tone = "plain", children }) {
    const [head, rest] = parted(text ?? "");
    return html`
      <div class="sentence tone-${tone}">
        <h1><${Tone} tone=${tone} />${coded(head)}</h1>
        ${rest && html`<p>${coded(rest)}</p>`} ${children}
        <${Status} text=${text ?? ""} />
      </div>`;
  }

  const Panel = ({ title, aside, name = "", children }) => html`
    <section class="panel ${name}" aria-label=${title}>
      <header><h2>${title}</h2>${aside}</header>
      ${children}
    </section>`;

  const Figure = ({ label, value, unit, note, tone = "" }) => html`
    <div class="figure ${tone}">
      <dt>${label}</dt>
      <dd><strong>${value}</strong>${unit && html` <span>${unit}</span>`}<small>${note}</small></dd>
    </div>`;

  /** The same as a picture, as a table; its rows are made when it is opened. */
  function AsTable({ label, head, rows }) {
    const [open, setOpen] = useState(false);
    return html`
      <details class="as-table" onToggle=${(event) => setOpen(event.currentTarget.open)}>
        <summary>as a table</summary>
        ${open &&
        html`<div class="scroll" tabindex="0" role="region" aria-label=${`${label}, as a table`}>
          <table>
            <caption class="unseen">${label}</caption>
            <thead><tr>${head.map((cell) => html`<th scope="col">${cell}</th>`)}</tr></thead>
            <tbody>${rows().map((row) => html`<tr>${row.map((cell, at) => (at ? html`<td>${cell}</td>` : html`<th scope="row">${cell}</th>`))}</tr>`)}</tbody>
          </table>
        </div>`}
      </details>`;
  }

  /** Buttons, one of them pressed. */
  const Choice = ({ label, options, chosen, choose }) => html`
    <div class="choice" role="group" aria-label=${label}>
      ${options.map(([value, text]) => html`<button key=${value} type="button" aria-pressed=${String(value === chosen)} onClick=${() => choose(value)}>${text}</button>`)}
    </div>`;

  // Events -------------------------------------------------------------------------------------------------

  const BAD = /\.(lost|failed|revoked|refused|rejected|invalid|expired|damaged|diverged|discarded|reverted|voided|broken|excluded|exceeded|misused)$|^lease\.returned$|denied/u;
  const WARN = /suspected|missed|paused|slowed|declined|withheld|dropped|deferred|held|fenced|down-weighted|reinstated|drained|waiting/u;
  const GOOD = /evaluated|published|resumed|done|assigned|joined|device\.returned|finished|started|approved|undrained/u;
  const ROUTINE = /^(epoch\.done|job\.evaluated|lease\.returned)$/u;
  const toneOf = (kind) => (BAD.test(kind) ? "bad" : WARN.test(kind) ? "warn" : GOOD.test(kind) ? "good" : "");

  /** The first events of a list; routine ones only where others leave room. */
  function foremost(events, most) {
    const places = new Set(events.map((event, at) => at).sort((a, b) => ROUTINE.test(events[a].kind) - ROUTINE.test(events[b].kind) || a - b).slice(0, most));
    return events.filter((event, at) => places.has(at));
  }

  function Events({ events, most = 8, empty = "Nothing happened yet." }) {
    const [all, setAll] = useState(false);
    if (!events.length) return html`<p class="empty">${empty}</p>`;
    const shown = all ? events : foremost(events, most);
    return html`
      <ol class="events">
        ${shown.map((event) => html`
          <li key=${event.key ?? event.seq} class=${toneOf(event.kind)}>
            <time title=${S.moment(event.at_s)}>${S.clock(event.at_s)}</time>
            <b>${event.kind}</b>
            <span>${event.reason}</span>
          </li>`)}
      </ol>
      ${events.length > most && html`<button type="button" class="more" aria-expanded=${String(all)} onClick=${() => setAll(!all)}>
        ${all ? "show fewer" : `show all ${events.length}`}
      </button>`}`;
  }

  /** A command line that does the same, to copy. */
  function CommandLine({ text }) {
    const [copied, setCopied] = useState(false);
    const copy = () => navigator.clipboard?.writeText(text).then(() => setCopied(true), () => {});
    return html`<div class="command"><code>${text}</code>
      ${navigator.clipboard && html`<button type="button" onClick=${copy}>${copied ? "copied" : "copy"}</button>`}</div>`;
  }

  /** As a shell reads it. */
  const quoted = (text) => (/^[\w.:/@%+=-]+$/u.test(text) ? text : `'${String(text).replaceAll("'", "'\\''")}'`);

  const byName = (a, b) => (a[0] < b[0] ? -1 : 1);
  const isOpen = (job) => !["finished", "failed", "stopped"].includes(job.state);
  /** Of several jobs, the one a person most likely means: named, open, newest. */
  function pickJob(state, id) {
    const jobs = Object.entries(state?.jobs ?? {});
    const found = jobs.find(([name]) => name === id);
    return found ?? jobs.sort((a, b) => isOpen(b[1]) - isOpen(a[1]) || (a[1].since_s ?? 0) - (b[1].since_s ?? 0))[0] ?? null;
  }

  const jobName = (state, id) => (Object.hasOwn(state.jobs ?? {}, id) && state.jobs[id].name) || id;

  const ENDED_SHOWN_S = 600;
  /** Jobs that belong on a first screen (open, or ended a moment ago; else the last one), and those that ended before. */
  function partedJobs(state) {
    const jobs = Object.entries(state?.jobs ?? {}).sort(byName);
    const isNow = (job) => isOpen(job) || (S.known(job.since_s) && job.since_s <= ENDED_SHOWN_S);
    const now = jobs.filter(([, job]) => isNow(job));
    if (!now.length && jobs.length) now.push(pickJob(state, null));
    return { now, ended: jobs.filter((each) => !now.some(([id]) => id === each[0])) };
  }

  const JobPicker = ({ state, chosen, screen }) => {
    const jobs = Object.entries(state.jobs ?? {}).sort(byName);
    if (jobs.length < 2) return null;
    const options = (of) => of.map(([id, job]) => html`<option key=${id} value=${id} selected=${id === chosen}>${job.name || id} (${id})</option>`);
    const [open, ended] = [jobs.filter(([, job]) => isOpen(job)), jobs.filter(([, job]) => !isOpen(job))];
    return html`<label class="picker">job
      <select value=${chosen} onChange=${(event) => (location.hash = `#/${screen}/${encodeURIComponent(event.currentTarget.value)}`)}>
        ${open.length > 0 && html`<optgroup label="open">${options(open)}</optgroup>`}
        ${ended.length > 0 && html`<optgroup label="ended">${options(ended)}</optgroup>`}
      </select></label>`;
  };

  Object.assign(S, { Sentence, Tone, Panel, Figure, AsTable, Choice, Events, CommandLine, JobPicker });
  Object.assign(S, { coded, parted, quoted, pickJob, partedJobs, jobName, isOpen, toneOf, byName });
})((window.Shoal ??= {}));
