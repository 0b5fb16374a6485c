// Two plans side by side on simulated devices, which run the real code in virtual time.
"use strict";
((S) => {
  const { html, useEffect, useRef, useState } = htmPreact;
  const POLL_MS = 700;
  /** Closer than this, two times are the same. */
  const ALIKE = 1.1;
  const LANES_SHOWN = 8;
  const PROFILES = {
    "pi4-lan": "Raspberry Pi 4, wired",
    "pi4-wifi": "Raspberry Pi 4, Wi-Fi",
    laptops: "laptops at home",
    "wifi-phones": "phones on Wi-Fi",
    "idle-phones": "phones, when idle",
    "3g-phones": "phones on 3G",
    mixed: "mixed",
    even: "all alike",
  };

  /** `codec=dense pace=sync` as an object; numbers and yes or no as such. */
  function planOf(text) {
    const plan = {};
    for (const part of text.split(/[\s,]+/u).filter(Boolean)) {
      const cut = part.indexOf("=");
      if (cut < 1) throw new Error(`${part} is not KEY=VALUE, such as codec=dense`);
      const value = part.slice(cut + 1);
      plan[part.slice(0, cut)] = value === "true" ? true : value === "false" ? false : value !== "" && Number.isFinite(Number(value)) ? Number(value) : value;
    }
    return plan;
  }

  const reached = (outcome) => (S.known(outcome.goal) ? outcome.evaluations?.find((each) => each.accuracy >= outcome.goal)?.at_s : null) ?? null;

  /** [label, value of an outcome, its text, whether less is better]; a row without numbers is left out. */
  const ROWS = [
    ["time to the goal", reached, S.span, true],
    ["time in all", (each) => each.seconds, S.span, true],
    ["accuracy at the end", (each) => each.accuracy, (value) => S.share(value, 2), false],
    ["versions", (each) => each.rounds, S.count, null],
    ["epochs", (each) => each.epochs, S.count, null],
    ["bytes up", (each) => each.bytes_up, S.bytes, true],
    ["bytes down", (each) => each.bytes_down, S.bytes, true],
    ["energy, estimated", (each) => each.energy_wh || null, (value) => `${Number(value.toPrecision(3))} Wh`, true],
    ["device time not training", (each) => each.idle_share, (value) => S.share(value, 0), true],
    ["leases that expired", (each) => each.leases_expired, S.count, true],
  ];

  const Letter = ({ of }) => html`<span class="letter letter-${of}">${of.toUpperCase()}</span>`;

  function verdict({ a, b }) {
    const [one, other] = [reached(a), reached(b)];
    const goal = a.goal ?? b.goal;
    if (one !== null && other !== null) {
      const alike = Math.max(one, other) < ALIKE * Math.min(one, other);
      if (alike) {
        const lighter = b.bytes_up < a.bytes_up ? "B" : "A";
        return [`Both reach ${S.share(goal, 0)} equally soon.`, `${S.span(one)} and ${S.span(other)}. ${lighter} sends ${S.ratio(a.bytes_up, b.bytes_up)} fewer bytes up.`, "ok"];
      }
      const quicker = other < one ? "B" : "A";
      const bytes = S.ratio(a.bytes_up, b.bytes_up);
      const fewer = bytes && bytes !== "=" ? `, with ${bytes} ${(b.bytes_up < a.bytes_up) === (quicker === "B") ? "fewer" : "more"} bytes up` : "";
      return [`${quicker} reaches ${S.share(goal, 0)} ${S.ratio(one, other)} sooner.`, `${S.span(Math.min(one, other))} against ${S.span(Math.max(one, other))}${fewer}.`, "ok"];
    }
    if (one !== null || other !== null) return [`Only ${one !== null ? "A" : "B"} reaches ${S.share(goal, 0)}.`, `The other ended so: ${one !== null ? b.reason : a.reason}`, "attention"];
    const sooner = b.seconds < a.seconds ? "B" : "A";
    return [`${sooner} ends ${S.ratio(a.seconds, b.seconds)} sooner.`, `${S.span(Math.min(a.seconds, b.seconds))} against ${S.span(Math.max(a.seconds, b.seconds))}.`, "ok"];
  }

  function Facts({ a, b }) {
    return html`
      <${S.Panel} title="Side by side">
        <table class="facts-table">
          <caption class="unseen">Both plans</caption>
          <thead><tr><th scope="col"><span class="unseen">figure</span></th><th scope="col" class="right"><${Letter} of="a" /></th><th scope="col" class="right"><${Letter} of="b" /></th><th scope="col" class="right">ratio</th></tr></thead>
          <tbody>${ROWS.map(([label, value, text, less]) => {
            const [one, other] = [value(a), value(b)];
            if (!S.known(one) && !S.known(other)) return null;
            const better = less === null || !S.known(one) || !S.known(other) || one === other ? "" : (one < other) === less ? "a" : "b";
            const cell = (each, letter) => html`<td class="right">${better === letter ? html`<b>${text(each)}</b>` : S.known(each) ? text(each) : S.NOTHING}</td>`;
            return html`<tr key=${label}><th scope="row">${label}</th>${cell(one, "a")}${cell(other, "b")}<td class="right dim">${S.ratio(one, other)}</td></tr>`;
          })}
          <tr><th scope="row">it ended</th><td class="right">${a.state}</td><td class="right">${b.state}</td><td></td></tr></tbody>
        </table>
        <p class="note">The same code as on devices, with another clock. Trust ratios more than seconds: profiles are averages of published measurements.</p>
      <//>`;
  }

  function Lanes({ letter, outcome, toS }) {
    const lanes = (outcome.lanes ?? []).slice(0, LANES_SHOWN);
    const rows = lanes.map((lane) => ({ name: lane.node, spans: lane.spans.filter(([does, begin]) => does !== "away" || begin > 0).map(([does, begin, end]) => [begin, end, S.SIMULATED[does] ?? "idle"]) }));
    return html`
      <div><h3><${Letter} of=${letter} /> ${outcome.plan ?? ""}</h3>
        <${S.Lanes} rows=${rows} fromS=${0} toS=${toS} zeroS=${0} endS=${outcome.seconds} label=${`Plan ${letter.toUpperCase()}: what each device did`} /></div>`;
  }

  function Result({ told }) {
    const { a, b } = told;
    const [head, rest, tone] = verdict(told);
    const learns = (each) => (each.evaluations ?? []).filter((point) => S.known(point.accuracy)).map((point) => [point.at_s, point.accuracy]);
    const longest = Math.max(a.seconds, b.seconds);
    const shortest = Math.min(a.seconds, b.seconds);
    const toS = longest > 4 * shortest ? shortest * 2 : longest;
    return html`
      <${S.Sentence} text=${`${head} ${rest}`} tone=${tone} />
      <div class="columns simulated">
        <${Facts} a=${a} b=${b} />
        <${S.Panel} title="Accuracy over virtual time" name="wide" aside=${html`<span class="dim"><${Letter} of="a" /> ${a.plan ?? "A"}  <${Letter} of="b" /> ${b.plan ?? "B"}</span>`}>
          ${a.is_system_only || !(learns(a).length || learns(b).length)
            ? html`<p class="empty">Nothing was trained here: time, bytes and devices only.</p>`
            : html`<${S.Curve} label="accuracy of both plans over virtual time" height=${innerWidth < 640 ? 240 : 390} format=${(value) => S.share(value, 0)} goal=${a.goal ?? null}
                lines=${[{ label: "A", colour: "--plan-a", points: learns(a), dots: true }, { label: "B", colour: "--plan-b", points: learns(b), dots: true }]} />
              <p class="note">The dashed line is the goal.</p>`}
        <//>
      </div>
      <${S.Panel} title="What each device did, on one time scale" aside=${html`<${S.Legend} of=${["train", "download", "upload", "evaluate", "prepare", "wait", "lost"]} />`}>
        <div class="twice"><${Lanes} letter="a" outcome=${a} toS=${toS} /><${Lanes} letter="b" outcome=${b} toS=${toS} /></div>
        ${(a.devices?.length ?? 0) > LANES_SHOWN && html`<p class="note">${LANES_SHOWN} of ${a.devices.length} devices are shown.</p>`}
      <//>`;
  }

  // The request, kept while other screens are open.
  const kept = { devices: "12", profile: "laptops", task: "", goal: "90", a: "topology=star codec=dense", b: "topology=star codec=top1%+ef+4bit", told: null, id: null, error: "" };

  function Simulate() {
    const [, again] = useState(0);
    const form = useRef(null);
    const set = (values) => {
      Object.assign(kept, values);
      again((count) => count + 1);
    };
    const running = kept.told?.state === "running";
    useEffect(() => {
      if (!running) return undefined;
      const timer = setInterval(async () => {
        try {
          set({ told: await S.ask(`/api/simulate/${encodeURIComponent(kept.id)}`) });
        } catch (error) {
          set({ told: null, error: `The simulation was lost: ${error.message}. Start it again.` });
        }
      }, POLL_MS);
      return () => clearInterval(timer);
    }, [running]);
    const start = async (event) => {
      event.preventDefault();
      const asked = Object.fromEntries(new FormData(form.current));
      set({ ...asked, error: "" });
      try {
        const until = asked.goal ? { until: { accuracy: Number(asked.goal) / 100 } } : {};
        const plans = ["a", "b"].map((name) => ({ plan: { ...planOf(asked[name]), ...until } }));
        const told = await S.tell("/api/simulate", { a: plans[0], b: plans[1], devices: Number(asked.devices), profile: asked.profile, task: asked.task || null });
        if (told.denied) set({ error: told.denied });
        else set({ id: told.id, told: { state: "running", progress: 0 } });
      } catch (error) {
        set({ error: error.message });
      }
    };
    const differ = kept.b.split(/\s+/u).filter((part) => part && !kept.a.split(/\s+/u).includes(part));
    const line = ["shoal simulate", kept.task || "TASK", `--devices ${kept.devices}`, `--profile ${kept.profile}`, kept.goal && `--until-accuracy ${Number(kept.goal) / 100}`, ...kept.a.split(/\s+/u).filter(Boolean).map((part) => `--plan ${S.quoted(part)}`), ...differ.map((part) => `--versus ${S.quoted(part)}`)].filter(Boolean).join(" ");
    return html`
      ${kept.told?.state === "done" ? null : html`<${S.Sentence} tone=${kept.told?.state === "failed" ? "trouble" : "plain"} text=${running ? `Both plans are being simulated: ${S.share(kept.told.progress, 0)}.` : kept.told?.state === "failed" ? `The simulation failed. ${kept.told.reason}` : "Try two plans before you ship one. Shoal runs the code that devices run, under a virtual clock."} />`}
      ${kept.told?.state === "done" && html`<${Result} told=${kept.told} />`}
      <${S.Panel} title="Ask" name="ask">
        <form ref=${form} onSubmit=${start} class="question">
          <label>devices<input name="devices" type="number" min="1" max="1000" required value=${kept.devices} /></label>
          <label>profile<select name="profile">${Object.entries(PROFILES).map(([name, text]) => html`<option key=${name} value=${name} selected=${name === kept.profile}>${text}</option>`)}</select></label>
          <label>until, % right<input name="goal" type="number" min="1" max="100" step="any" value=${kept.goal} /></label>
          <label>task<input name="task" value=${kept.task} placeholder="digits, as in the demo" autocomplete="off" spellcheck="false" /></label>
          <label class="plan"><span><${Letter} of="a" /> plan A</span><input name="a" value=${kept.a} autocomplete="off" spellcheck="false" /></label>
          <label class="plan"><span><${Letter} of="b" /> plan B</span><input name="b" value=${kept.b} autocomplete="off" spellcheck="false" /></label>
          <button class="primary" disabled=${running}>${running ? "Simulating …" : "Simulate both"}</button>
        </form>
        ${running && html`<progress max="1" value=${kept.told.progress ?? 0} aria-label="how far the simulation is"></progress>`}
        ${kept.error && html`<p class="denied" role="alert">${kept.error}</p>`}
        <p class="note">The same in a terminal:</p>
        <${S.CommandLine} text=${line} />
      <//>`;
  }

  S.Simulate = Simulate;
})((window.Shoal ??= {}));
