// Numbers, spans, bytes and times as the command line writes them. Pure functions.
"use strict";
((S) => {
  const NOTHING = "–";
  const known = (value) => typeof value === "number" && Number.isFinite(value);

  function scaled(value, units) {
    let step = 0;
    while (Math.abs(value) >= (step ? 999.95 : 999.5) && step < units.length - 1) {
      value /= 1000;
      step += 1;
    }
    return [step ? value.toFixed(1) : value.toFixed(0), units[step]];
  }

  const bytes = (size) => (known(size) ? scaled(size, ["B", "kB", "MB", "GB", "TB", "PB"]).join(" ") : NOTHING);
  const count = (number) => (known(number) ? scaled(number, ["", "k", "M", "G", "T"]).join("") : NOTHING);

  function rate(perSecond) {
    if (!known(perSecond)) return NOTHING;
    if (perSecond >= 100) return count(perSecond);
    return perSecond >= 1 ? perSecond.toFixed(1) : String(Number(perSecond.toPrecision(2)));
  }

  function span(seconds) {
    if (!known(seconds)) return NOTHING;
    if (Math.abs(seconds) < 9.95) return `${seconds.toFixed(1)} s`;
    const whole = Math.round(seconds);
    const two = (number) => String(number).padStart(2, "0");
    if (whole < 60) return `${whole} s`;
    if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
    if (whole < 172800) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
    return `${Math.floor(whole / 86400)} days ${Math.floor((whole % 86400) / 3600)} h`;
  }

  /** A short span, with its digits where it is short. */
  function lease(seconds) {
    if (!known(seconds) || seconds <= 0) return NOTHING;
    if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
    return seconds < 10 ? `${seconds.toFixed(2)} s` : span(seconds);
  }

  /** 95 -> 1:35, for axes. */
  function minutes(seconds) {
    const sign = seconds < 0 ? "−" : "";
    const whole = Math.abs(seconds);
    if (whole < 60) return `${sign}${Number(whole.toFixed(whole < 10 ? 1 : 0))} s`;
    return `${sign}${Math.floor(whole / 60)}:${String(Math.round(whole % 60)).padStart(2, "0")}`;
  }

  const share = (part, digits = 1) => (known(part) ? `${(part * 100).toFixed(digits)} %` : NOTHING);
  const number = (value) => (known(value) ? String(Number(value.toPrecision(4))) : NOTHING);

  /** A share for metrics that are shares by name, else four digits. */
  const SHARES = new Set(["accuracy", "f1", "auc", "precision", "recall"]);
  const isShare = (name) => SHARES.has(name);
  const metric = (name, value, digits = 2) => (isShare(name) ? share(value, digits) : number(value));

  const clockOf = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
  const wholeOf = new Intl.DateTimeFormat(undefined, { dateStyle: "full", timeStyle: "long" });
  const clock = (atS) => (known(atS) ? clockOf.format(new Date(atS * 1000)) : NOTHING);
  const moment = (atS) => (known(atS) ? wholeOf.format(new Date(atS * 1000)) : "");

  const plural = (amount, one, many = `${one}s`) => `${amount.toLocaleString("en")} ${amount === 1 ? one : many}`;

  function listed(names, most = 3) {
    if (names.length > most) return `${names.slice(0, most).join(", ")} and ${names.length - most} more`;
    return names.length > 1 ? `${names.slice(0, -1).join(", ")} and ${names.at(-1)}` : names.join("");
  }

  /** How much larger: 138×. */
  function ratio(one, other) {
    if (!known(one) || !known(other) || one <= 0 || other <= 0) return "";
    const factor = Math.max(one, other) / Math.min(one, other);
    return factor < 1.05 ? "=" : `${factor >= 10 ? Math.round(factor) : factor.toFixed(1)}×`;
  }

  Object.assign(S, { NOTHING, known, bytes, count, rate, span, lease, minutes, share, number, isShare, metric });
  Object.assign(S, { clock, moment, plural, listed, ratio });
})((window.Shoal ??= {}));
