/**
 * A moment as people read it: in the viewer's zone, in UTC when it is pointed at.
 */
import { html } from "../vendor/lit-html/lit-html.js";
import { clock, clockInZone, hasDate, moment, span, utc, zone } from "../words.js";

/**
 * A time of the clock, with the date unless it is today's.
 * @param {string | number | null | undefined} value  As relations have it.
 */
export function drawTime(value) {
  const ms = moment(value);
  if (ms === undefined) return "–";
  return drawMoment(ms, utc(ms), clock(ms));
}

/**
 * The same with its zone beside it: once for all times of a screen.
 * @param {number} ms
 */
export function drawTimeInZone(ms) {
  return hasDate(ms) ? html`${drawTime(ms)}\u00a0${zone(ms)}` : drawTime(ms);
}

/**
 * How long ago, or in how long; "now" within a second.
 * @param {string | number | null | undefined} value
 * @param {number} now  That of the page: `page.now`.
 */
export function ago(value, now) {
  const ms = moment(value);
  if (ms === undefined) return "–";
  const past = now - ms;
  const text =
    Math.abs(past) < 1_000 ? "now" : past > 0 ? `${span(past)} ago` : `in ${span(-past)}`;
  return drawMoment(ms, `${clockInZone(ms)} (${utc(ms)})`, text);
}

/**
 * How long something has lasted.
 * @param {string | number | null | undefined} value
 * @param {number} now
 */
export function lasting(value, now) {
  const ms = moment(value);
  if (ms === undefined) return "–";
  return drawMoment(ms, `since ${clockInZone(ms)} (${utc(ms)})`, span(Math.max(0, now - ms)));
}

/**
 * @param {number} ms
 * @param {string} title
 * @param {string} text
 */
function drawMoment(ms, title, text) {
  if (!hasDate(ms)) return text;
  return html`<time datetime=${new Date(ms).toISOString()} title=${title}>${text}</time>`;
}
