// A job: its state, six figures, curves of every metric with faults on them, lanes, the plan and the reasons for it.
"use strict";
((S) => {
  const { html, useEffect, useState } = htmPreact;
  const SERIES_EVERY_S = 5;
  const MARKED = /^(device\.lost|device\.suspected|version\.published|version\.reinstated|job\.resumed|save\.failed)$/u;
  const TIME_S = 60;

  // When ----------------------------------------------------------------------------------------------------

  /** The moment that the job's own clock calls 0, by an evaluation that was told with both clocks, or by now. */
  function zeroOf(state, job) {
    const told = new Map();
    for (const event of job.events ?? []) {
      const version = event.kind === "job.evaluated" && /\bversion ([\d,]+)/u.exec(event.reason);
      if (version) told.set(Number(version[1].replaceAll(",", "")), event.at_s);
    }
    for (const each of (job.evaluations ?? []).toReversed()) {
      if (told.has(each.version)) return told.get(each.version) - each.seconds;
    }
    return state.at_s - (job.progress?.seconds ?? 0);
  }

  /** What is worth a line across curves and lanes. */
  function marksOf(job) {
    return S.eventsOf(job.events ?? [])
      .filter((event) => MARKED.test(event.kind))
      .map((event) => {
        const bad = S.toneOf(event.kind) === "bad" || S.toneOf(event.kind) === "warn";
        const who = bad ? event.reason.split(":")[0] : (/\bversion [\d,]+/u.exec(event.reason)?.[0] ?? "");
        const text = event.kind === "version.reinstated" ? "rolled back" : bad ? `${who} ${event.kind === "device.suspected" ? "silent" : event.kind.split(".")[1]}` : who.replace("version ", "v");
        return { atS: event.at_s, text: text.length > 26 ? `${text.slice(0, 25)}…` : text, bad, kind: event.kind };
      })
      .filter((mark, at, all) => mark.kind !== "device.suspected" || !all.some((other) => other.kind === "device.lost" && other.text.split(" ")[0] === mark.text.split(" ")[0] && Math.abs(other.atS - mark.atS) < 15))
      .sort((a, b) => a.atS - b.atS);
  }

  function useSeries(id, fromS, toS) {
    const [series, setSeries] = useState({});
    const turn = S.store.at === null ? Math.floor(toS / SERIES_EVERY_S) : toS;
    useEffect(() => {
      let here = true;
      S.ask(`/api/series?job=${encodeURIComponent(id)}&from=${Math.max(0, fromS)}&to=${toS}`).then((told) => here && setSeries(told), () => {});
      return () => (here = false);
    }, [id, turn]);
    return series;
  }

  // Figures -------------------------------------------------------------------------------------------------

  const WORTH = { gains: "Yes", saturated: "No", unsure: "Not yet known" };

  function Figures({ state, job, lanes }) {
    const progress = job.progress ?? {};
    const shown = S.bestMetric(job);
    const series = (job.evaluations ?? []).map((each) => each.metrics?.[shown?.[0]]).filter(S.known);
    const step = series.length > 1 ? series.at(-1) - series.at(-2) : null;
    const change = shown && step !== null && `${step < 0 ? "−" : "+"}${S.isShare(shown[0]) ? `${Math.abs(step * 100).toFixed(2)} points` : S.number(Math.abs(step))} since the one before`;
    const spent = S.shares((job.workers ?? []).flatMap((name) => lanes.get(name) ?? []), state.at_s - TIME_S, state.at_s);
    const part = (does) => S.share(spent.get(does) ?? 0, 0);
    const moves = (spent.get("upload") ?? 0) + (spent.get("download") ?? 0);
    const edges = (job.topology?.edges ?? []).reduce((all, edge) => all + (edge[2] || 0), 0);
    return html`
      <dl class="figures">
        <${S.Figure} label=${shown ? `Held-out ${shown[0]}` : "Held-out"} value=${shown ? S.metric(shown[0], shown[1].value, 1) : S.NOTHING} note=${change || "evaluated after each epoch"} />
        <${S.Figure} label="Pace" value=${S.rate(progress.rounds_per_s)} unit="versions/s" note=${progress.rounds_per_s ? `a round takes ${S.lease(1 / progress.rounds_per_s)}` : "no version yet"} />
        <${S.Figure} label="Throughput" value=${S.rate(progress.examples_per_s)} unit="examples/s" note=${`version ${progress.version ?? 0}, saved up to ${progress.durable_version ?? 0}`} />
        <${S.Figure} label="Traffic" value=${S.bytes(edges).split(" ")[0]} unit=${`${S.bytes(edges).split(" ")[1]}/s`} note=${`↑ ${S.bytes(progress.bytes_up)} ↓ ${S.bytes(progress.bytes_down)} in all`} />
        <${S.Figure} label="Goodput: device time" value=${spent.size ? part("train") : S.NOTHING} unit="trains" note=${`${part("wait")} waits, ${S.share(moves, 0)} moves models`} />
        <${S.Figure} label="One more device?" value=${WORTH[progress.saturation] ?? "Not yet known"} note=${progress.saturation_reason || "nothing was measured yet"} />
      </dl>`;
  }

  // Curves --------------------------------------------------------------------------------------------------

  function Curves({ state, id, job, zeroS, marks }) {
    const [chosen, choose] = useState(null);
    const series = useSeries(id, zeroS - 5, state.at_s);
    const evaluations = job.evaluations ?? [];
    const names = [...new Set([...Object.keys(job.metrics ?? {}), ...evaluations.flatMap((each) => Object.keys(each.metrics ?? {}))])];
    names.sort((a, b) => (b === "accuracy") - (a === "accuracy") || (a < b ? -1 : 1));
    const times = (series.at_s ?? []).map((atS) => atS - zeroS);
    const recorded = (values) => times.map((x, at) => [x, values?.[at]]).filter((point) => S.known(point[1]));
    const options = [
      ...names.map((name) => [`m:${name}`, name]),
      ["train_loss", "training loss"],
      ["examples_per_s", "examples/s"],
      ["bytes_per_s", "bytes/s"],
      ["version", "version"],
    ];
    const picked = options.some(([value]) => value === chosen) ? chosen : options[0][0];
    const name = picked.startsWith("m:") ? picked.slice(2) : null;
    const points = name !== null ? evaluations.map((each) => [each.seconds, each.metrics?.[name]]).filter((point) => S.known(point[1])) : recorded(series[picked]);
    const formats = { bytes_per_s: (value) => `${S.bytes(value)}/s`, train_loss: S.number };
    const format = name !== null ? (value) => (S.isShare(name) ? S.share(value, value > 0.9 && value < 1 ? 1 : 0) : S.number(value)) : (formats[picked] ?? S.count);
    const label = options.find(([value]) => value === picked)[1];
    return html`
      <${S.Panel} title="Curves" name="curves" aside=${html`<${S.Choice} label="Which curve" options=${options} chosen=${picked} choose=${choose} />`}>
        ${points.length
          ? html`<${S.Curve} label=${`${name !== null ? `held-out ${label}` : label} of ${job.name || id} over time`} format=${format}
              endX=${state.at_s - zeroS} lines=${[{ label, colour: name !== null ? "--evaluate" : "--train", points, dots: name !== null }]}
              marks=${marks.map((mark) => ({ x: mark.atS - zeroS, text: mark.text, bad: mark.bad }))} />`
          : html`<p class="empty">No measurements yet.</p>`}
        <p class="note">Short dashes: something broke. Long dashes: a version was published. Time counts from the start of the job.</p>
      <//>`;
  }

  // Lanes ---------------------------------------------------------------------------------------------------

  function JobLanes({ state, job, zeroS, marks, lanes, span, setSpan, fromS }) {
    const toS = state.at_s;
    const names = [...new Set([...(job.workers ?? []), ...Object.entries(state.nodes ?? {}).filter(([, node]) => node.does === "lost" || node.role === "spare").map(([name]) => name)])];
    const entries = names.filter((name) => state.nodes[name]).map((name) => [name, state.nodes[name]]);
    const many = entries.length > S.SINGLE_MAX;
    const shown = many ? entries.sort(S.worstFirst).slice(0, 12) : entries.sort(S.byName);
    const rows = shown.map(([name, node]) => ({ name, bad: node.state !== "alive", spans: (lanes.get(name) ?? []).filter((each) => each[1] >= fromS), note: node.why }));
    const rest = many ? entries.slice(12).map(([name]) => lanes.get(name) ?? []) : [];
    const pick = html`<${S.Choice} label="How much time" options=${[[15, "15 s"], [45, "45 s"], [0, "all"]]} chosen=${span} choose=${setSpan} />`;
    return html`
      <${S.Panel} title="What each device did" aside=${html`${pick}<${S.Legend} of=${["train", "download", "upload", "evaluate", "prepare", "wait", "lost"]} />`}>
        <${S.Lanes} rows=${rows} fromS=${fromS} toS=${toS} zeroS=${zeroS} label="What each device did" lines=${marks} />
        ${many && html`<h3>The other ${rest.length}</h3><${S.Band} lanes=${rest} fromS=${fromS} toS=${toS} label="the other devices" />`}
      <//>`;
  }

  const TimeSpent = ({ state, job, lanes }) => {
    const spent = S.shares((job.workers ?? []).flatMap((name) => lanes.get(name) ?? []), state.at_s - TIME_S, state.at_s);
    const order = Object.keys(S.MARKS).filter((does) => spent.get(does) > 0.004);
    let x = 0;
    return html`
      <${S.Panel} title="Where device time goes" aside=${html`<span class="dim">last ${TIME_S} s</span>`}>
        <svg class="stack" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
          ${order.map((does) => {
            const wide = spent.get(does) * 100;
            x += wide;
            return html`<rect key=${does} class="fill-${does}" x=${x - wide} y="0" width=${Math.max(0.1, wide - 0.4)} height="8" />`;
          })}
        </svg>
        <ul class="legend counted">${order.map((does) => html`<li key=${does}><${S.Mark} does=${does} />${S.markOf(does).word} <b>${S.share(spent.get(does), 0)}</b></li>`)}</ul>
      <//>`;
  };

  // Plan ----------------------------------------------------------------------------------------------------

  const said = (value) => (value === "" ? S.NOTHING : value === true ? "yes" : value === false ? "no" : typeof value === "object" ? JSON.stringify(value) : String(value));

  const Keys = ({ pairs, changed }) => html`
    <dl class="keys">${pairs.map(([key, value]) => html`<div key=${key} class=${changed.has(key) ? "changed" : ""}><dt>${key}</dt><dd>${said(value)}</dd></div>`)}</dl>`;

  const FIRST = ["topology", "pace", "codec", "work", "data", "batch_size", "lease_batches", "until"];

  function PlanPanel({ job }) {
    const plan = Object.entries(job.plan ?? {});
    const changed = new Set(job.plan_changed ?? []);
    const rank = ([key]) => (FIRST.includes(key) ? FIRST.indexOf(key) : 100);
    const first = plan.filter(([key]) => FIRST.includes(key) || changed.has(key)).sort((a, b) => rank(a) - rank(b));
    const rest = plan.filter(([key]) => !FIRST.includes(key) && !changed.has(key)).sort(S.byName);
    const choices = job.choices ?? [];
    const longest = Math.max(...choices.map((each) => each.batch_s || 0), 1e-9);
    const taken = choices.find((each) => each.chosen);
    return html`
      <${S.Panel} title="Plan, and why" aside=${html`<a href="#/simulate">try another</a>`}>
        <${Keys} pairs=${first} changed=${changed} />
        ${choices.length > 0 && html`
          <h3>What a batch is predicted to take</h3>
          <ul class="choices">${choices.map((each) => html`<li key=${each.topology + each.pace} class=${each.chosen ? "chosen" : ""}>
            <span>${each.chosen ? "▸ " : ""}${each.topology}${each.pace && each.pace !== "sync" ? `, ${each.pace}` : ""}</span>
            <svg class="bar" viewBox="0 0 100 4" preserveAspectRatio="none" aria-hidden="true"><rect class="back" width="100" height="4" /><rect width=${((100 * (each.batch_s || 0)) / longest).toFixed(1)} height="4" /></svg>
            <b>${S.lease(each.batch_s)}</b><small>${each.detail}</small></li>`)}</ul>`}
        ${(job.topology?.why || taken) && html`<p class="note">${job.topology?.why || `${taken.topology} was chosen: ${taken.detail}.`}</p>`}
        ${rest.length > 0 && html`<details><summary>${S.plural(rest.length, "more key")}</summary><${Keys} pairs=${rest} changed=${changed} /></details>`}
      <//>`;
  }

  function Job({ state, id }) {
    const [span, setSpan] = useState(45);
    const picked = S.pickJob(state, id);
    if (!picked) return html`<${S.Sentence} text="No job yet. shoal train TASK starts one." />`;
    const [found, job] = picked;
    const zeroS = zeroOf(state, job);
    const marks = marksOf(job);
    const fromS = span ? state.at_s - span : Math.max(zeroS, S.store.record.from_s, state.at_s - 900);
    const lanes = S.lanes(Math.min(fromS, state.at_s - TIME_S), state.at_s);
    const progress = job.progress ?? {};
    const rest = progress.batches_total ? `Epoch ${(progress.epoch ?? 0) + 1}, ${progress.batches_applied} of ${progress.batches_total} batches.` : "";
    return html`
      <${S.Sentence} text=${`${job.sentence}${/[.!?]$/u.test(job.sentence ?? "") ? "" : "."} ${rest}`} tone=${job.tone || "ok"}>
        <div class="beside">
          <${S.JobPicker} state=${state} chosen=${found} screen="job" />
          <${S.Act} act="stop" on=${{ job: found }} /><${S.Act} act="transfer" on=${{ job: found }} />
        </div>
      <//>
      <${Figures} state=${state} job=${job} lanes=${lanes} />
      <div class="columns job">
        <div class="stacked wide">
          <${Curves} key=${found} state=${state} id=${found} job=${job} zeroS=${zeroS} marks=${marks} />
          <${JobLanes} state=${state} job=${job} zeroS=${zeroS} marks=${marks} lanes=${lanes} span=${span} setSpan=${setSpan} fromS=${fromS} />
        </div>
        <div class="stacked">
          <${TimeSpent} state=${state} job=${job} lanes=${lanes} />
          <${PlanPanel} job=${job} />
          <${S.Panel} title="What happened, and why"><${S.Events} events=${S.eventsOf(job.events ?? [])} /><//>
        </div>
      </div>`;
  }

  S.Job = Job;
})((window.Shoal ??= {}));
