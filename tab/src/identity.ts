// Who this device is: a P-256 key, made once and kept in its key store, and the certificate that the cluster gave it for a
// one-time token.

import type { Door, KeyStore } from "./parts.ts";
import { say } from "./words.ts";

/** The cluster does not let this device in; the message is its reason, as the manager words it. */
export class RefusedHere extends Error {}

export interface Identity { node: string; cluster: string; certificate_pem: string; key: CryptoKey }

const ECDSA = { name: "ECDSA", namedCurve: "P-256" };
const SIGN = { name: "ECDSA", hash: "SHA-256" };
const FORM = "shoal tab 1";

/** The rows that a job asks of each device: `columns` as its graphs declare them, and what its plan says of what leaves. `epsilon`,
 * `delta` and `participations` are what a private job promises; 0 if it promises nothing. `keeps_part`: a part of the model is each
 * device's own, and stays there. Managers of earlier releases do not say so. */
export interface OwnOffer { columns: unknown; shares_labels: boolean; epsilon: number; delta: number; participations: number; keeps_part?: boolean }

/** A job that this device may be given, and what it moves. */
export interface Offer {
  job: string; name: string; operator: string; once_bytes: number; update_bytes: number; minute_bytes: number;
  /** Of a job that learns from devices' own rows. */
  own?: OwnOffer | null;
}

/** Who asks, what for, and the jobs that there are. */
export interface About { cluster: string; operator: string; purpose: string; jobs: Offer[] }

/** Ask the cluster what it wants of a device, by a link's token or by the certificate that this device has. It spends
 * nothing, and downloads nothing of a job. */
export async function about(door: Door, secret: string, identity: Identity | null): Promise<About> {
  const given = identity ? { certificate_pem: identity.certificate_pem } : { secret };
  return (await asked(door, "/about", given)) as unknown as About;
}

async function asked(door: Door, path: string, question: unknown): Promise<Record<string, string>> {
  const answer = await door.post(path, JSON.stringify(question)).catch(() => {
    throw new Error(say("why.unreachable"));
  });
  const told = (await answer.json()) as Record<string, string>;
  if (!answer.ok) throw new RefusedHere(told.refused ?? String(answer.status));
  return told;
}

/** Spend a token. The key is made here, and what is sent is a request that proves it. */
export async function join(door: Door, keys: KeyStore, secret: string, wanted: string): Promise<Identity> {
  const pair = await crypto.subtle.generateKey(ECDSA, keys.isExtractable, ["sign", "verify"]);
  const told = await asked(door, "/enrol", { secret, wanted, csr_pem: await request(pair, wanted) });
  const identity = { node: told.node, cluster: told.cluster, certificate_pem: told.certificate_pem, key: pair.privateKey };
  await keys.save(identity);
  return identity;
}

/** The answer to a door's challenge, for one stream. */
export async function answer(door: Door, identity: Identity, told: { challenge: string; origin: string }, verb: string, incarnation: string): Promise<string> {
  // A door that says it is elsewhere gets nothing that is of use there.
  if (told.origin !== door.origin) throw new Error(`the door says that it is ${told.origin}`);
  const text = [FORM, told.origin, verb, incarnation, told.challenge].join("\n");
  const signature = await signed(identity.key, new TextEncoder().encode(text));
  return JSON.stringify({ certificate_pem: identity.certificate_pem, signature: base64(signature), verb, incarnation });
}

async function signed(key: CryptoKey, content: Uint8Array): Promise<Uint8Array> {
  const raw = new Uint8Array(await crypto.subtle.sign(SIGN, key, content as BufferSource));
  // WebCrypto gives r and s side by side; X.509 wants them as a sequence of two integers.
  return der(0x30, integer(raw.subarray(0, 32)), integer(raw.subarray(32)));
}

// A signing request (RFC 2986), by hand: a subject, a key, no attributes ---------------------------------------------

async function request(pair: CryptoKeyPair, wanted: string): Promise<string> {
  const commonName = der(0x30, Uint8Array.of(0x06, 3, 0x55, 4, 3), der(0x0c, new TextEncoder().encode(wanted)));
  const key = new Uint8Array(await crypto.subtle.exportKey("spki", pair.publicKey));
  const body = der(0x30, Uint8Array.of(2, 1, 0), der(0x30, der(0x31, commonName)), key, Uint8Array.of(0xa0, 0));
  // ecdsa-with-SHA256
  const algorithm = der(0x30, Uint8Array.of(0x06, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2));
  const bits = der(0x03, Uint8Array.of(0), await signed(pair.privateKey, body));
  const text = base64(der(0x30, body, algorithm, bits)).replace(/.{64}/g, "$&\n").trimEnd();
  return `-----BEGIN CERTIFICATE REQUEST-----\n${text}\n-----END CERTIFICATE REQUEST-----\n`;
}

function der(tag: number, ...parts: Uint8Array[]): Uint8Array {
  const size = parts.reduce((sum, part) => sum + part.length, 0);
  const head = size < 128 ? [tag, size] : size < 256 ? [tag, 0x81, size] : [tag, 0x82, size >> 8, size & 0xff];
  const whole = new Uint8Array(head.length + size);
  whole.set(head);
  let at = head.length;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}

function integer(bytes: Uint8Array): Uint8Array {
  let start = 0;
  while (start < bytes.length - 1 && !bytes[start]) start++;
  const short = bytes.subarray(start);
  return der(0x02, short[0] & 0x80 ? Uint8Array.of(0, ...short) : short);
}

function base64(bytes: Uint8Array): string {
  return btoa(String.fromCharCode(...bytes));
}
