// Where updates are summed: devices at fixed places, lines as thick as their traffic. Only the lines change.
"use strict";
((S) => {
  const { html } = htmPreact;
  const WIDTH = 520;
  const HEIGHT = 430;
  const HUB = { x: WIDTH / 2, y: 44 };
  const SINGLE_MAX = 24;

  const places = new Map();
  /** Every device keeps the place it was first seen at: a new one takes the next. */
  function placeOf(name, names) {
    if (!places.size) [...names].sort().forEach((each, at) => places.set(each, at));
    if (!places.has(name)) places.set(name, places.size);
    return places.get(name);
  }

  /** On an arc below the hub, from the left over the bottom to the right. */
  function spot(at, count) {
    const slots = Math.max(3, count);
    const angle = Math.PI * (1.04 - (1.08 * (at + 0.5)) / slots);
    return { x: WIDTH / 2 + Math.cos(angle) * 172, y: 132 + Math.sin(angle) * 226 };
  }

  /** Lines of all jobs whose ends are places; the ends that are no device are the hub. */
  function flows(jobs, ends) {
    const lines = new Map();
    let most = 1;
    for (const [from, to, rate] of jobs.flatMap(([, job]) => job.topology?.edges ?? [])) {
      const pair = [ends(from), ends(to)];
      if (pair[0] === pair[1]) continue;
      const key = JSON.stringify(pair.toSorted());
      const line = lines.get(key) ?? { pair, rate: 0 };
      line.rate += rate || 0;
      lines.set(key, line);
      most = Math.max(most, line.rate);
    }
    return [...lines.values()].map((line) => ({ ...line, width: 1 + 7 * Math.sqrt(line.rate / most) }));
  }

  const Line = ({ one, other, line }) => html`
    <line class=${line.rate ? "flow" : "flow still"} x1=${one.x} y1=${one.y} x2=${other.x} y2=${other.y} stroke-width=${line.width.toFixed(1)} />`;

  const Carried = ({ one, other, line, at }) => {
    if (!line.rate || line.told === false) return null;
    const part = 0.42 + 0.1 * (at % 3);
    const text = `${S.bytes(line.rate)}/s`;
    const x = one.x + (other.x - one.x) * part;
    const y = one.y + (other.y - one.y) * part;
    const wide = text.length * 6.1 + 8;
    return html`<rect class="halo" x=${x - wide / 2} y=${y - 8} width=${wide} height="16" rx="8" />
      <text class="carried" x=${x} y=${y + 4} text-anchor="middle">${text}</text>`;
  };

  const shortened = (name) => (name.length > 17 ? `${name.slice(0, 16)}…` : name);

  /** ``job``: the name of its job, where several are open. */
  function Spot({ name, place, does, ring, under, job, bad }) {
    const side = place.x < WIDTH / 2 - 60 ? -1 : place.x > WIDTH / 2 + 60 ? 1 : 0;
    const below = side === 0 || place.y > 320;
    const x = below ? place.x : place.x + side * 28;
    const y = below ? place.y + 38 : place.y - 2;
    const anchor = below ? "middle" : side < 0 ? "end" : "start";
    return html`
      <g class="spot ${bad ? "bad" : ""} ${does === "lost" ? "lost" : ""}">
        <circle cx=${place.x} cy=${place.y} r="20" />
        ${ring && html`<circle class="ring" cx=${place.x} cy=${place.y} r="24" />`}
        <svg class="mark mark-${does}" x=${place.x - 8} y=${place.y - 8} width="16" height="16" viewBox="0 0 16 16">${S.shapeOf(does)}</svg>
        <text class="name" x=${x} y=${y} text-anchor=${anchor}>${shortened(name)}<title>${name}</title></text>
        <text class="under" x=${x} y=${y + 15} text-anchor=${anchor}>${under}</text>
        ${job && html`<text class="under" x=${x} y=${y + 29} text-anchor=${anchor}>${shortened(job)}</text>`}
      </g>`;
  }

  const Hub = ({ title, under, crossed }) => html`
    <g class="hub ${crossed ? "bad" : ""}">
      <rect x=${HUB.x - 76} y=${HUB.y - 24} width="152" height="48" rx="10" />
      <text class="name" x=${HUB.x} y=${HUB.y - 3} text-anchor="middle">${title}</text>
      <text class="under" x=${HUB.x} y=${HUB.y + 14} text-anchor="middle">${under}</text>
    </g>`;

  function single(state, jobs, nodes) {
    const names = nodes.map(([name]) => name);
    const isDevice = new Set(names);
    const lines = flows(jobs, (name) => (isDevice.has(name) ? name : ""));
    names.forEach((name) => placeOf(name, names));
    const placed = new Map(names.map((name) => [name, spot(placeOf(name, names), Math.max(places.size, names.length))]));
    const where = (name) => placed.get(name) ?? HUB;
    const carried = new Map();
    const degree = new Map();
    for (const { pair, rate } of lines) {
      for (const name of pair) {
        carried.set(name, (carried.get(name) ?? 0) + rate);
        degree.set(name, (degree.get(name) ?? 0) + 1);
      }
    }
    // If a device has only one line, its traffic is shown below its name.
    for (const line of lines) line.told = !line.pair.some((name) => name && degree.get(name) === 1);
    const under = (name, node) => {
      if (node.state === "lost") return "lost";
      if (node.fails) return "fails";
      if (node.role === "leader") return "leads";
      if (node.role === "spare") return "spare";
      return carried.get(name) ? `${S.bytes(carried.get(name))}/s` : S.markOf(node.does).word;
    };
    const jobOf = (node) => (jobs.length > 1 && node.job ? S.jobName(state, node.job) : "");
    const spots = nodes.map(([name, node]) => ({
      name, does: node.does, place: placed.get(name), bad: node.state !== "alive" || Boolean(node.fails),
      ring: node.role === "leader" || node.role === "aggregator",
      under: under(name, node), job: jobOf(node),
    })); // prettier-ignore
    return { lines, where, spots, hubRate: carried.get("") };
  }

  /** Too many to draw one by one: aggregators each, the rest by what they do. */
  function grouped(state, jobs, nodes) {
    const groups = new Map();
    const groupOf = new Map();
    for (const [name, node] of nodes) {
      const own = node.role === "leader" || node.role === "aggregator";
      const key = own ? name : node.does;
      if (own && groups.size > SINGLE_MAX - 6) continue;
      const group = groups.get(key) ?? { name: own ? name : "", does: node.does, ring: own, count: 0 };
      group.count += 1;
      groups.set(key, group);
      groupOf.set(name, key);
    }
    const lines = flows(jobs, (name) => groupOf.get(name) ?? "");
    const keys = [...groups.keys()].sort();
    const placed = new Map(keys.map((key, at) => [key, spot(at, keys.length)]));
    const spots = keys.map((key) => {
      const group = groups.get(key);
      const word = S.markOf(group.does).word;
      return { name: group.name || `${group.count.toLocaleString("en")} ${word}`, does: group.does, ring: group.ring, bad: group.does === "lost",
        place: placed.get(key), under: group.name ? word : S.plural(group.count, "device") }; // prettier-ignore
    });
    return { lines, where: (key) => placed.get(key) ?? HUB, spots, hubRate: 0 };
  }

  /** ``jobs``: the open ones, as [id, job]. Every device of each of them has its line. */
  function Drawing({ state, jobs }) {
    const nodes = Object.entries(state.nodes ?? {}).sort(S.byName);
    const { lines, where, spots, hubRate } = nodes.length > SINGLE_MAX ? grouped(state, jobs, nodes) : single(state, jobs, nodes);
    const away = state.cluster.manager === "unreachable";
    const leads = jobs.some(([, job]) => job.leader && !state.nodes[job.leader]);
    const under = away ? "does not answer" : leads ? `leads${hubRate ? `, ${S.bytes(hubRate)}/s` : ""}` : "watches";
    const words = `${S.plural(nodes.length, "device")}; ${lines.length ? S.plural(lines.length, "line") : "no line"} between them.`;
    const ends = (key) => key || "manager";
    return html`
      <svg class="drawing" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label=${`Where updates are summed. ${words}`}>
        ${lines.map((line) => html`<${Line} key=${line.pair.join()} one=${where(line.pair[0])} other=${where(line.pair[1])} line=${line} />`)}
        ${lines.length <= 12 && lines.map((line, at) => html`<${Carried} key=${line.pair.join()} one=${where(line.pair[0])} other=${where(line.pair[1])} line=${line} at=${at} />`)}
        <${Hub} title="manager" under=${under} crossed=${away} />
        ${spots.map((each) => html`<${Spot} key=${each.name} ...${each} />`)}
      </svg>
      <p class="note">A line is as thick as what it carries. A double ring collects updates for others. Devices keep their places.</p>
      <${S.AsTable} label="Lines between devices" head=${["between", "and", "carries"]} rows=${() =>
        lines.map((line) => [ends(line.pair[0]), ends(line.pair[1]), `${S.bytes(line.rate)}/s`])} />`;
  }

  S.Drawing = Drawing;
})((window.Shoal ??= {}));
