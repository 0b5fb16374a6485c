// When a tab rests although its user agreed: pure, from what the browser tells of itself.

import { say } from "./words.ts";

export interface Around {
  isHidden: boolean;
  /** From 0 to 1; null: the browser does not say. */
  battery: number | null;
  isCharging: boolean;
  isMetered: boolean;
}

/** What the user allowed beyond the usual. */
export interface Allowed { hidden: boolean; battery: boolean; metered: boolean }

export const BATTERY_LEAST = 0.3;

/** Why it rests; empty: it trains. */
export function whyRest(around: Around, allowed: Allowed): string {
  if (around.isHidden && !allowed.hidden) return say("why.hidden");
  if (around.isMetered && !allowed.metered) return say("why.metered");
  const isLow = around.battery !== null && !around.isCharging && around.battery < BATTERY_LEAST;
  if (isLow && !allowed.battery) return say("why.battery", BATTERY_LEAST * 100);
  return "";
}
