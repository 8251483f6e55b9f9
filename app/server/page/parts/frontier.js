/**
 * A time of a shard, in the viewer's zone and in UTC on hover. NULL is the end of all times, and a
 * shard may have times that are none of a clock.
 *
 * @typedef {number | string} Time  Text if a number cannot hold it: its digits.
 */
import { html } from "../vendor/lit-html/lit-html.js";
import { clock, clockInZone, utc } from "../words.js";
import { isClockTime } from "./axis.js";

/**
 * As text in which nothing can be pointed at: a time of the clock has its zone.
 * @param {Time | null | undefined} time
 */
export function frontierText(time) {
  if (time == null) return "the end";
  if (typeof time === "string") return BigInt(time).toLocaleString();
  return isClockTime(time) ? clockInZone(time) : time.toLocaleString();
}

/**
 * Whether a time is before another; digits are no text here, of which "9" is behind "10".
 * @param {Time} one
 * @param {Time} other
 */
export function isBefore(one, other) {
  return BigInt(one) < BigInt(other);
}

/** @param {Time | null | undefined} time */
export function drawFrontier(time) {
  if (time == null || typeof time === "string" || !isClockTime(time)) return frontierText(time);
  return html`<time datetime=${new Date(time).toISOString()} title=${utc(time)}
    >${clock(time)}</time
  >`;
}
