/**
 * The spans of time that the time line shows, and the one that it begins with.
 *
 * @typedef {import("./marks.js").Mark} Mark
 *
 * @typedef {object} Zoom
 * @property {number} width  Time that is shown; all in ms.
 * @property {number} step  From label to label, in a wide window.
 * @property {number} narrow  The same in a narrow one.
 */
import { timeOfDay } from "../words.js";

const MINUTE = 60_000;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

export const ZOOMS = /** @type {Record<string, Zoom>} */ ({
  "10 min": { width: 10 * MINUTE, step: 2 * MINUTE, narrow: 5 * MINUTE },
  "1 h": { width: HOUR, step: 10 * MINUTE, narrow: 20 * MINUTE },
  "6 h": { width: 6 * HOUR, step: HOUR, narrow: 2 * HOUR },
  "1 d": { width: DAY, step: 3 * HOUR, narrow: 6 * HOUR },
  "30 d": { width: 30 * DAY, step: 5 * DAY, narrow: 10 * DAY },
});

/** Is shown unless less time holds all marks, or somebody has chosen. */
const USUAL = "1 d";

/**
 * The zoom that was chosen, or else the smallest up to the usual one that has room for all marks.
 * @param {string} chosen  "" where none was.
 * @param {Mark[]} marks  The oldest first.
 * @param {number} now
 */
export function zoomOf(chosen, marks, now) {
  if (chosen in ZOOMS) return chosen;
  if (!marks.length) return USUAL;
  const names = Object.keys(ZOOMS);
  const enough = names.findIndex((name) => ZOOMS[name].width > now - marks[0].at);
  return enough >= 0 && enough < names.indexOf(USUAL) ? names[enough] : USUAL;
}

/**
 * The words for a moment at the foot of the line.
 * @param {number} at
 * @param {number} width  Of the line: the day is told where hours are not enough.
 */
export function labelOf(at, width) {
  const when = new Date(at);
  const midnight = when.getHours() === 0 && when.getMinutes() === 0;
  if (width > DAY || midnight)
    return when.toLocaleDateString(undefined, { day: "numeric", month: "short" });
  return timeOfDay(when, "minute");
}
