// Lanes: what devices did over time, on a canvas, with the same as text.
"use strict";
((S) => {
  const { html, useEffect, useRef, useState } = htmPreact;

  /** A canvas as wide as its box, drawn again when its box, the theme or what it shows changes. */
  function useCanvas(height, draw) {
    const ref = useRef(null);
    const [width, setWidth] = useState(0);
    const [, setTheme] = useState(0);
    useEffect(() => {
      const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry.contentRect.width)));
      const turn = () => setTheme((count) => count + 1);
      watch.observe(ref.current.parentElement);
      addEventListener("shoal-theme", turn);
      return () => {
        watch.disconnect();
        removeEventListener("shoal-theme", turn);
      };
    }, []);
    useEffect(() => {
      const canvas = ref.current;
      const dense = devicePixelRatio || 1;
      if (!width) return;
      canvas.width = width * dense;
      canvas.height = height * dense;
      canvas.style.width = `${width}px`;
      canvas.style.height = `${height}px`;
      const context = canvas.getContext("2d");
      context.scale(dense, dense);
      context.clearRect(0, 0, width, height);
      draw(context, width, height);
    });
    return ref;
  }

  /** Activity -> its share of the time that spans cover between two moments. */
  function shares(spans, fromS, toS) {
    const seconds = new Map();
    let all = 0;
    for (const [begin, end, does] of spans) {
      const part = Math.min(end, toS) - Math.max(begin, fromS);
      if (part <= 0) continue;
      seconds.set(does, (seconds.get(does) ?? 0) + part);
      all += part;
    }
    return new Map([...seconds].map(([does, part]) => [does, part / all]));
  }

  const DID = { train: "trained", download: "downloaded", upload: "uploaded", evaluate: "evaluated", wait: "waited" };
  Object.assign(DID, { prepare: "prepared", lead: "led", idle: "had no job", lost: "was lost" });

  function told(spans, fromS, toS) {
    const parts = [...shares(spans, fromS, toS)].sort((a, b) => b[1] - a[1]);
    return parts.map(([does, part]) => `${DID[does] ?? does} ${Math.round(part * 100)} %`).join(", ") || "not known";
  }

  /** Spans too short to see, as a terminal shows them: in each column, what was done longest. */
  function coarse(spans, fromS, toS, width) {
    const seen = spans.filter((span) => span[1] >= fromS && span[0] <= toS);
    const columns = Math.floor(width / 2);
    if (seen.length < columns / 2) return seen;
    const step = (toS - fromS) / columns;
    const longest = Array.from({ length: columns }, () => new Map());
    for (const [begin, end, does] of seen) {
      const last = Math.min(columns - 1, Math.floor((end - fromS) / step));
      for (let at = Math.max(0, Math.floor((begin - fromS) / step)); at <= last; at += 1) {
        const part = Math.min(end, fromS + (at + 1) * step) - Math.max(begin, fromS + at * step);
        longest[at].set(does, (longest[at].get(does) ?? 0) + part);
      }
    }
    const found = [];
    longest.forEach((shares, at) => {
      if (!shares.size) return;
      const does = [...shares].reduce((one, other) => (other[1] > one[1] ? other : one))[0];
      const last = found.at(-1);
      if (last && last[2] === does && Math.abs(last[1] - (fromS + at * step)) < step / 2) last[1] = fromS + (at + 1) * step;
      else found.push([fromS + at * step, fromS + (at + 1) * step, does]);
    });
    return found;
  }

  function drawLane(context, spans, fromS, toS, x, y, width, height) {
    const scale = width / (toS - fromS);
    const clipped = [];
    for (const [begin, end, does] of coarse(spans, fromS, toS, width)) {
      if (end < fromS || begin > toS) continue;
      const left = x + Math.max(0, (begin - fromS) * scale);
      const right = x + Math.min(width, (end - fromS) * scale);
      clipped.push([does, left, Math.max(0.5, right - left), begin >= fromS]);
    }
    for (const [does, left, wide, opens] of clipped) S.drawSpan(context, does, left, y, wide, height, opens);
  }

  /** One device's lane, as small as a row of a table. */
  function Lane({ spans, fromS, toS, height = 24 }) {
    const ref = useCanvas(height, (context, width) => drawLane(context, spans, fromS, toS, 0, 2, width, height - 4));
    const words = `last ${Math.round(toS - fromS)} s: ${told(spans, fromS, toS)}`;
    return html`<span class="canvas"><canvas ref=${ref} role="img" aria-label=${words}></canvas></span>`;
  }

  /** Many devices as one band: at each moment, how many of them did what. */
  function Band({ lanes, fromS, toS, height = 96, label }) {
    const order = Object.keys(S.MARKS);
    const ref = useCanvas(height, (context, width) => {
      const columns = Math.max(10, Math.floor(width / 4));
      const step = (toS - fromS) / columns;
      const counts = Array.from({ length: columns }, () => ({ all: 0 }));
      for (const spans of lanes) {
        for (const [begin, end, does] of spans) {
          const first = Math.max(0, Math.floor((begin - fromS) / step));
          const last = Math.min(columns - 1, Math.floor((end - fromS) / step));
          for (let at = first; at <= last; at += 1) {
            counts[at][does] = (counts[at][does] ?? 0) + 1;
            counts[at].all += 1;
          }
        }
      }
      counts.forEach((count, at) => {
        let y = height;
        for (const does of order) {
          if (!count[does]) continue;
          const tall = (count[does] / count.all) * height;
          y -= tall;
          context.fillStyle = context.strokeStyle = S.colour(S.markOf(does).colour);
          const x = (at * width) / columns;
          const wide = width / columns;
          if (does === "wait" || does === "idle" || does === "lost") {
            context.globalAlpha = 0.35;
            context.fillRect(x, y, wide, tall);
            context.globalAlpha = 1;
          } else context.fillRect(x, y, wide, tall);
          context.clearRect(x, y, wide, 1);
        }
      });
    });
    const words = `${label}: ${told(lanes.flat(), fromS, toS)}`;
    return html`<span class="canvas band"><canvas ref=${ref} role="img" aria-label=${words}></canvas></span>`;
  }

  const STEPS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1200, 3600];

  /**
   * Lanes of several devices on one time axis. `rows`: [{name, spans, note}]; `lines`: [{atS, text, bad}];
   * `zeroS`: the moment that the axis calls 0; `endS`: after it nothing was.
   */
  function Lanes({ rows, lines = [], fromS, toS, zeroS = fromS, endS = null, label }) {
    const narrow = innerWidth < 640;
    const rowHeight = narrow ? 42 : 34;
    const top = lines.length ? 18 : 4;
    const height = top + rows.length * rowHeight + 22;
    const ref = useCanvas(height, (context, width) => {
      const left = narrow ? 0 : Math.min(150, 24 + 7.2 * Math.max(4, ...rows.map((row) => row.name.length)));
      const wide = width - left - 6;
      const xOf = (atS) => left + ((atS - fromS) / (toS - fromS)) * wide;
      context.font = `12px ${getComputedStyle(document.body).fontFamily}`;
      context.textBaseline = "middle";
      const step = STEPS.find((each) => (toS - fromS) / each <= wide / 70) ?? 7200;
      for (let at = Math.ceil((fromS - zeroS) / step) * step; at <= toS - zeroS; at += step) {
        const x = Math.round(xOf(at + zeroS)) + 0.5;
        context.strokeStyle = S.colour("--rule");
        context.lineWidth = 1;
        context.beginPath();
        context.moveTo(x, top);
        context.lineTo(x, height - 20);
        context.stroke();
        context.fillStyle = S.colour("--dim");
        context.textAlign = x > width - 24 ? "right" : x < 24 ? "left" : "center";
        context.fillText(S.minutes(at), x, height - 9);
      }
      rows.forEach((row, number) => {
        const y = top + number * rowHeight;
        const laneTop = narrow ? y + 16 : y + 5;
        const laneHeight = narrow ? rowHeight - 20 : rowHeight - 10;
        context.textAlign = "left";
        context.fillStyle = S.colour(row.bad ? "--bad" : "--ink");
        context.fillText(row.name, 0, narrow ? y + 8 : y + rowHeight / 2, narrow ? wide : left - 10);
        drawLane(context, row.spans, fromS, toS, left, laneTop, wide, laneHeight);
        if (row.note && !row.spans.length) {
          context.fillStyle = S.colour("--dim");
          context.fillText(row.note, left + 4, laneTop + laneHeight / 2, wide - 8);
        }
      });
      let until = -Infinity;
      for (const { atS, text, bad } of lines) {
        if (atS < fromS || atS > toS) continue;
        const x = Math.round(xOf(atS)) + 0.5;
        context.strokeStyle = context.fillStyle = S.colour(bad ? "--bad" : "--good");
        context.lineWidth = 1.5;
        context.setLineDash(bad ? [2, 3] : [6, 3]);
        context.beginPath();
        context.moveTo(x, top - 4);
        context.lineTo(x, height - 20);
        context.stroke();
        context.setLineDash([]);
        const measured = context.measureText(text).width;
        const begin = Math.max(left, Math.min(x - 4, width - measured - 2));
        if (text && begin > until && measured < wide) {
          context.textAlign = "left";
          context.fillText(text, begin, 7);
          until = begin + measured + 10;
        }
      }
      if (endS !== null && endS < toS) {
        context.strokeStyle = S.colour("--ink");
        context.lineWidth = 2;
        context.beginPath();
        context.moveTo(xOf(endS), top);
        context.lineTo(xOf(endS), height - 20);
        context.stroke();
      }
    });
    const words = `${label}; ${S.plural(rows.length, "device")} over ${S.span(toS - fromS)}. The table below says the same.`;
    const columns = Object.keys(S.MARKS).filter((does) => rows.some((row) => row.spans.some((span) => span[2] === does)));
    return html`
      <span class="canvas"><canvas ref=${ref} role="img" aria-label=${words}></canvas></span>
      <${S.AsTable} label=${label} head=${["device", ...columns.map((does) => S.markOf(does).word)]} rows=${() =>
        rows.map((row) => {
          const part = shares(row.spans, fromS, toS);
          return [row.name, ...columns.map((does) => (part.has(does) ? S.share(part.get(does), 0) : S.NOTHING))];
        })} />`;
  }

  Object.assign(S, { Lane, Lanes, Band, useCanvas, shares, told });
})((window.Shoal ??= {}));
