// A curve over time by uPlot, with faults and versions marked on it and its numbers in a table.
"use strict";
((S) => {
  const { html, useEffect, useRef } = htmPreact;

  const font = () => `12px ${getComputedStyle(document.body).fontFamily}`;

  /** Upright lines with their words, drawn over the grid. */
  function marksPlugin(marks) {
    return {
      hooks: {
        drawAxes: (plot) => {
          const { ctx: context, bbox } = plot;
          const dense = devicePixelRatio || 1;
          context.save();
          context.font = `${11 * dense}px ${getComputedStyle(document.body).fontFamily}`;
          context.textAlign = "left";
          const words = [];
          let until = -Infinity;
          for (const { x, text, bad } of marks.current ?? []) {
            const left = plot.valToPos(x, "x", true);
            if (!(left >= bbox.left - 1 && left <= bbox.left + bbox.width + 1)) continue;
            context.strokeStyle = context.fillStyle = S.colour(bad ? "--bad" : "--good");
            context.lineWidth = 1.5 * dense;
            context.setLineDash(bad ? [2 * dense, 3 * dense] : [6 * dense, 3 * dense]);
            context.beginPath();
            context.moveTo(left, bbox.top);
            context.lineTo(left, bbox.top + bbox.height);
            context.stroke();
            const wide = context.measureText(text).width;
            const begin = Math.min(left + 4 * dense, bbox.left + bbox.width - wide);
            if (text && begin > until) {
              words.push([text, begin, wide, context.fillStyle]);
              until = begin + wide + 8 * dense;
            }
          }
          // Texts last, on their own background, so that no line runs through them.
          for (const [text, begin, wide, ink] of words) {
            context.fillStyle = S.colour("--panel");
            context.fillRect(begin - 2 * dense, bbox.top - dense, wide + 4 * dense, 15 * dense);
            context.fillStyle = ink;
            context.fillText(text, begin, bbox.top + 10 * dense);
          }
          context.restore();
        },
      },
    };
  }

  /**
   * `lines`: [{label, colour, points: [[x, y]...], dots}]; `format` says a value; `range`: [low, high] or null;
   * `goal`: a value to reach.
   */
  function Curve({ lines, marks = [], format, range = null, height = 230, label, goal = null, endX = null, axis = S.minutes }) {
    const box = useRef(null);
    const plot = useRef(null);
    const shown = useRef(marks);
    shown.current = marks;
    const endAt = useRef(endX);
    endAt.current = endX;
    const shape = JSON.stringify([lines.map((line) => [line.label, line.colour, line.dots]), range, height, goal, label]);
    const data = (() => {
      const xs = [...new Set([...(goal === null ? [] : [0]), ...lines.flatMap((line) => line.points.map((point) => point[0]))])].sort((a, b) => a - b);
      const columns = lines.map((line) => {
        const at = new Map(line.points);
        return xs.map((x) => at.get(x));
      });
      return [xs, ...columns, ...(goal === null ? [] : [xs.map(() => goal)])];
    })();
    const latest = useRef(data);
    latest.current = data;
    useEffect(() => {
      const make = () => {
        plot.current?.destroy();
        const grid = { stroke: S.colour("--rule"), width: 1 };
        const styled = (extra) => ({ stroke: S.colour("--dim"), font: font(), grid, ticks: { show: false }, ...extra });
        plot.current = new uPlot(
          {
            width: Math.max(200, box.current.clientWidth),
            height,
            legend: { show: false },
            cursor: { points: { show: true }, drag: { x: false, y: false } },
            padding: [16, 12, 0, 0],
            scales: { x: { time: false, range: (_, low, high) => [Math.min(0, low ?? 0), Math.max(endAt.current ?? 0, high ?? 1, 1)] }, y: { range: range ?? ((_, low, high) => roomy(low, high)) } },
            axes: [
              styled({ values: (_, ticks) => ticks.map((tick) => axis(tick)), space: 70, size: 28 }),
              styled({ values: (_, ticks) => ticks.map(format), size: 62, space: 34 }),
            ],
            series: [
              {},
              ...lines.map((line) => ({
                label: line.label,
                stroke: S.colour(line.colour),
                width: 2.2,
                spanGaps: true,
                points: { show: Boolean(line.dots), size: 7, width: 2, fill: S.colour("--panel") },
              })),
              ...(goal === null ? [] : [{ stroke: S.colour("--dim"), width: 1.2, dash: [6, 5], points: { show: false } }]),
            ],
            plugins: [marksPlugin(shown)],
          },
          latest.current,
          box.current,
        );
      };
      make();
      let width = box.current.clientWidth;
      const watch = new ResizeObserver(([entry]) => {
        const now = Math.floor(entry.contentRect.width);
        if (now !== width && now > 0) plot.current.setSize({ width: (width = now), height });
      });
      watch.observe(box.current);
      addEventListener("shoal-theme", make);
      return () => {
        watch.disconnect();
        removeEventListener("shoal-theme", make);
        plot.current?.destroy();
        plot.current = null;
      };
    }, [shape]);
    useEffect(() => plot.current?.setData(latest.current));
    const newest = lines.map((line) => (line.points.length ? `${line.label} ${format(line.points.at(-1)[1])}` : `${line.label}: nothing yet`));
    return html`
      <div class="curve" ref=${box} role="img" aria-label=${`${label}. Newest: ${newest.join("; ")}.`}></div>
      <${S.AsTable} label=${label} head=${["time", ...lines.map((line) => line.label)]} rows=${() =>
        data[0].map((x, row) => [axis(x), ...lines.map((_, at) => (data[at + 1][row] === undefined ? S.NOTHING : format(data[at + 1][row])))]).reverse().slice(0, 500)} />`;
  }

  function roomy(low, high) {
    if (low === null || low === undefined) return [0, 1];
    if (low === high) return [low - Math.abs(low) * 0.1 - 0.01, high + Math.abs(high) * 0.1 + 0.01];
    const room = (high - low) * 0.08;
    return [low >= 0 ? Math.max(0, low - room) : low - room, high + room];
  }

  S.Curve = Curve;
})((window.Shoal ??= {}));
