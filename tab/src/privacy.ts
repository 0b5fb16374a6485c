// What a private plan promises one device's person, in numbers: as `learning/privacy.py`, `learning/accountant.py`,
// `learning/blt.py` and `learning/clipping.py` have it. Pure.

import { TABLE } from "./blt_table.ts";
import type { Plain } from "./protobuf.ts";

const DELTA = 1e-5;
const ROUNDING = 1e-9;
const EPSILON_MAX = 1e6;
/** Steps of halving. */
const HALVINGS = 60;

export interface Privacy { epsilon: number; delta: number; clip: number; participations: number; apart: number; versions: number }

/** The promise of a plan; null: it makes none. */
export function privacyOf(plan: Plain): Privacy | null {
  const private_ = /private\(\s*([^,)\s]+)\s*(?:,\s*([^)\s]+)\s*)?\)/.exec(plan.trust ?? "");
  if (!private_ || plan.until?.epochs == null) return null;
  const pace = plan.pace === "auto" ? "sync" : plan.pace;
  const devices = pace === "sync" ? plan.cohort : pace === "buffered" ? plan.buffer : 1;
  const versions = plan.until.epochs * Math.ceil(plan.epoch_leases / Math.max(1, devices));
  const apart = plan.apart || Math.max(1, Math.floor(plan.workers_min / Math.max(1, devices)));
  const most = Math.ceil(versions / apart);
  const participations = plan.participations ? Math.min(plan.participations, most) : most;
  return { epsilon: Number(private_[1]), delta: Number(private_[2] ?? DELTA), clip: plan.clip_update, participations, apart, versions };
}

/** The ratio that a device has used, from its number of participations in each noise sequence. */
export function spentOf(privacy: Privacy, counts: number[]): number {
  const { participations, apart, versions } = privacy;
  const multiplier = toeplitzRatio(participations, apart, versions) / ratioFor(privacy);
  return ratioOfChains(counts, apart, versions) / multiplier;
}

/** Whether a device may take part this often in each noise sequence. */
export function allows(privacy: Privacy, counts: number[]): boolean {
  return counts.reduce((sum, count) => sum + count, 0) <= privacy.participations && spentOf(privacy, counts) <= ratioFor(privacy) * (1 + ROUNDING);
}

/** The update, or as much of it as is `clip` long (McMahan et al. 2018, section 3). */
export function clipped(update: Float32Array, clip: number): Float32Array {
  const length = Math.sqrt(update.reduce((sum, value) => sum + value * value, 0));
  if (length <= clip) return update;
  // A little less, since float32 rounds: what leaves is never longer than it is said to be.
  const share = Math.fround((clip / length) * (1 - 1e-6));
  return update.map((value) => value * share);
}

/** How far one device can move a sequence of sums (Kalinin and Lampert 2024, theorem 2). */
function toeplitzRatio(participations: number, apart: number, versions: number): number {
  const sizes = Object.keys(TABLE).map(Number).sort((a, b) => a - b);
  const size = sizes.find((each) => each >= versions);
  if (!size || !(versions >= 1)) throw new Error(`noise is known for 1 to ${sizes.at(-1)} versions, not ${versions}`);
  const { decays, weights } = TABLE[size];
  const column = Float64Array.from({ length: versions }, (_, j) => (j ? weights.reduce((sum, weight, i) => sum + weight * decays[i] ** (j - 1), 0) : 1));
  const moved = new Float64Array(versions);
  for (let first = 0; first < Math.min(versions, participations * apart); first += apart) {
    for (let at = first; at < versions; at++) moved[at] += column[at - first];
  }
  return Math.sqrt(moved.reduce((sum, each) => sum + each * each, 0));
}

function ratioOfChains(counts: number[], apart: number, versions: number): number {
  return Math.sqrt(counts.reduce((sum, count) => sum + toeplitzRatio(count, apart, versions) ** 2, 0));
}

/** δ(ε) = Φ(μ/2 - ε/μ) - e^ε·Φ(-μ/2 - ε/μ)   (Balle and Wang 2018). */
function deltaOf(ratio: number, epsilon: number): number {
  const first = logNormal(ratio / 2 - epsilon / ratio), second = epsilon + logNormal(-ratio / 2 - epsilon / ratio);
  return Math.max(0, Math.exp(first) - Math.exp(Math.min(second, first)));
}

/** The largest ratio of this ε and δ, by halving: what a plan may spend. */
export function ratioFor({ epsilon, delta }: Privacy): number {
  let low = 0, high = 1;
  while (deltaOf(high, epsilon) <= delta) [low, high] = [high, 2 * high];
  for (let i = 0; i < HALVINGS; i++) {
    const middle = (low + high) / 2;
    if (deltaOf(middle, epsilon) > delta) high = middle;
    else low = middle;
  }
  return low;
}

/** The smallest ε of this ratio, by halving. */
export function epsilonOf({ delta }: Privacy, ratio: number): number {
  if (!(ratio > 0) || deltaOf(ratio, 0) <= delta) return 0;
  let low = 0, high = 1;
  while (deltaOf(ratio, high) > delta) {
    [low, high] = [high, 2 * high];
    if (high > EPSILON_MAX) return Infinity;
  }
  for (let i = 0; i < HALVINGS; i++) {
    const middle = (low + high) / 2;
    if (deltaOf(ratio, middle) > delta) low = middle;
    else high = middle;
  }
  return high;
}

/** ln Φ(x): by a series near 0, and by Laplace's continued fraction in the tail. */
function logNormal(value: number): number {
  if (value > 0) return Math.log1p(-Math.exp(logNormal(-value)));
  const x = -value / Math.SQRT2;
  if (x < 2) {
    let term = x, sum = x;
    for (let n = 1; term > sum * 1e-17; n++) sum += term *= (2 * x * x) / (2 * n + 1);
    return Math.log(0.5 - (Math.exp(-x * x) * sum) / Math.sqrt(Math.PI));
  }
  let fraction = x;
  for (let n = 200; n > 0; n--) fraction = x + n / 2 / fraction;
  return -x * x - Math.log(2 * Math.sqrt(Math.PI) * fraction);
}
