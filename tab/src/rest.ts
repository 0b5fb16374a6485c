// When a tab rests although its user agreed: pure, from what the browser tells of itself.

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
  if (around.isHidden && !allowed.hidden) return "this page is in the background";
  if (around.isMetered && !allowed.metered) return "this connection may cost money";
  const isLow = around.battery !== null && !around.isCharging && around.battery < BATTERY_LEAST;
  if (isLow && !allowed.battery) return `the battery is below ${BATTERY_LEAST * 100} % and is not charging`;
  return "";
}
