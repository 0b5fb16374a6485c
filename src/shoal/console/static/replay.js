// The replay bar: every screen as it was, up to an hour back. Faults are ticks on it, and buttons jump between them.
"use strict";
((S) => {
  const { html } = htmPreact;
  const BAD = /lost|failed|suspected|refused|reinstated/u;

  function Replay() {
    const { record, at, playing, live } = S.store;
    if (!live) return null;
    const span = record.to_s - record.from_s;
    const shown = at ?? record.to_s;
    const marks = (record.marks ?? []).filter((mark) => mark.at_s >= record.from_s && mark.at_s <= record.to_s);
    const bad = marks.filter((mark) => BAD.test(mark.kind));
    const jump = (step) => {
      const ahead = step > 0 ? bad.find((mark) => mark.at_s > shown + 1) : bad.findLast((mark) => mark.at_s < shown - 1);
      S.look(ahead ? ahead.at_s + 0.5 : step > 0 ? null : record.from_s);
    };
    const near = at !== null && marks.findLast((mark) => mark.at_s <= shown + 0.5 && mark.at_s > shown - 4);
    return html`
      <section class="replay ${at === null ? "" : "past"}" aria-label="Replay">
        <button type="button" class="play" onClick=${() => S.play()} aria-label=${playing ? "Pause" : "Play from here"}>${playing ? "❚❚" : "►"}</button>
        <button type="button" class="jump" onClick=${() => jump(-1)} aria-label="To the fault before">⇤</button>
        <time title=${S.moment(shown)}>${S.clock(shown)}</time>
        <div class="track">
          <svg viewBox="0 0 1000 10" preserveAspectRatio="none" aria-hidden="true">
            ${span > 1 && marks.map((mark) => html`<rect key=${mark.at_s + mark.kind} class=${BAD.test(mark.kind) ? "bad" : "good"} x=${(1000 * (mark.at_s - record.from_s)) / span - 1} y=${BAD.test(mark.kind) ? 0 : 4} width="2.4" height=${BAD.test(mark.kind) ? 10 : 6} />`)}
          </svg>
          <input type="range" min="0" max=${Math.max(1, Math.ceil(span))} step="1" value=${Math.round(shown - record.from_s)} aria-label="Moment shown"
            aria-valuetext=${at === null ? "now" : `${S.clock(shown)}, ${S.span(record.to_s - shown)} ago`}
            onInput=${(event) => S.look(record.from_s + Number(event.currentTarget.value))} />
        </div>
        <button type="button" class="jump" onClick=${() => jump(1)} aria-label="To the next fault">⇥</button>
        <span class="ago">${at === null ? "live" : `${S.span(record.to_s - shown)} ago`}</span>
        <button type="button" class="now" disabled=${at === null} onClick=${() => S.look(null)}>Now</button>
        ${near && html`<p class="near">${near.text}</p>`}
      </section>`;
  }

  S.Replay = Replay;
})((window.Shoal ??= {}));
