// The list that a person reads before rows of theirs teach a model: everything that a device's messages then carry. Pure.

import type { OwnOffer } from "./identity.ts";
import { say } from "./words.ts";

/** What leaves a device that learns from its own rows: one line for each thing that a message carries, and what does not. */
export function leaving({ shares_labels, epsilon, delta, participations, keeps_part }: OwnOffer, device: string): string[] {
  const isPrivate = epsilon > 0;
  return [
    isPrivate ? say("leaves.change-private", epsilon, delta, participations) : say("leaves.change"),
    say("leaves.held"),
    isPrivate ? say("leaves.lesson-private") : say("leaves.lesson"),
    ...(isPrivate ? [say("leaves.account")] : [say("leaves.fresh")]),
    ...(shares_labels && !isPrivate ? [say("leaves.labels")] : []),
    say("leaves.device", device),
    say("leaves.failure"),
    ...(keeps_part ? [say("leaves.stays")] : []),
    say("leaves.never"),
  ];
}
