/**
 * A time of a shard, in the viewer's zone and in UTC on hover. NULL is the end of all times, and a
 * shard may have times that are none of a clock.
 */
import { html } from "../vendor/lit-html/lit-html.js";
import { clock, utc } from "../words.js";
import { isClockTime } from "./axis.js";

/** @param {number | null | undefined} time */
export function frontierText(time) {
  if (time == null) return "the end";
  return isClockTime(time) ? clock(time) : time.toLocaleString();
}

/** @param {number | null | undefined} time */
export function drawFrontier(time) {
  if (time == null || !isClockTime(time)) return frontierText(time);
  return html`<time datetime=${new Date(time).toISOString()} title=${utc(time)}
    >${clock(time)}</time
  >`;
}
