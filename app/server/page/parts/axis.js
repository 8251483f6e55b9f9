/**
 * Puts times on a line of pixels, and chooses the times that are written beside it.
 *
 * A shard's newest second may stand beside a month. On an axis that is true to time the second is
 * thinner than a pixel; so there is another spacing, in which each stretch between two bounds is as
 * wide as any other. Both are monotonous: what is left of something is earlier.
 *
 * @typedef {"time" | "batch"} Spacing
 *
 * @typedef {object} Axis
 * @property {Spacing} spacing
 * @property {number} left  First pixel.
 * @property {number} right  Last pixel.
 * @property {number} from  Time at `left`.
 * @property {number} to  Time at `right`.
 * @property {number[]} knots  Times between which pixels are shared evenly, from `from` to `to`.
 */
import { timeOfDay } from "../words.js";

const DAY_MS = 86_400_000;
const QUARTER_MS = 900_000;
const YEAR_9999_MS = 253_402_300_799_999;

/** Steps between labels, in ms. */
const STEPS = [
  ...[1, 2, 5, 10, 20, 50, 100, 200, 500],
  ...[1, 2, 5, 10, 15, 30].map((seconds) => seconds * 1_000),
  ...[1, 2, 5, 10, 15, 30].map((minutes) => minutes * 60_000),
  ...[1, 2, 3, 6, 12].map((hours) => hours * 3_600_000),
  ...[1, 2, 5, 10, 30, 90, 180, 365, 730, 1825, 3650].map((days) => days * DAY_MS),
];

/** Below so many pixels a batch cannot be pointed at. */
const READABLE_PX = 4;

/**
 * @param {{ spacing: Spacing, left: number, right: number, from: number, to: number,
 *   bounds: (number | string)[] }} given  Bounds of what is shown, in any order; those outside are
 *   left out. Text is the digits of a number that is too large to be exact, which a place need not be.
 * @returns {Axis}
 */
export function makeAxis({ spacing, left, right, from, to, bounds }) {
  // A shard may have one time only, and a line of no length has no places.
  const end = to > from ? to : from + 1;
  const inside = bounds.map(Number).filter((time) => time > from && time < end);
  const sorted = [...new Set(inside)].sort((a, b) => a - b);
  const knots = spacing === "batch" ? [from, ...sorted, end] : [from, end];
  return { spacing, left, right, from, to: end, knots };
}

/**
 * The pixel of a time; times outside of the axis are at its ends.
 * @param {Axis} axis
 * @param {number | string} given
 */
export function place({ knots, left, right }, given) {
  const time = Number(given);
  const last = knots.length - 1;
  if (time <= knots[0]) return left;
  if (time >= knots[last]) return right;
  let low = 0;
  for (let high = last; high - low > 1;) {
    const middle = (low + high) >> 1;
    if (knots[middle] <= time) low = middle;
    else high = middle;
  }
  const within = (time - knots[low]) / (knots[low + 1] - knots[low]);
  return left + ((low + within) / last) * (right - left);
}

/**
 * The spacing in which most of what is shown can be seen.
 * @param {{ lower: number, upper: number }[]} stretches
 * @param {number} from
 * @param {number} to
 * @param {number} width  In px.
 * @returns {Spacing}
 */
export function readableSpacing(stretches, from, to, width) {
  const perMs = width / Math.max(to - from, 1);
  const thin = stretches.filter(({ lower, upper }) => {
    const shown = Math.min(upper, to) - Math.max(lower, from);
    return shown > 0 && shown * perMs < READABLE_PX;
  });
  return thin.length * 4 > stretches.length ? "batch" : "time";
}

/**
 * Times to be written beside the axis, each with its text and the pixel at which that begins; none
 * touches the one before it.
 * @param {Axis} axis
 * @param {number} letter  Width of a letter, in px.
 * @returns {{ time: number, x: number, start: number, text: string }[]}
 */
export function labels(axis, letter) {
  const times = axis.spacing === "batch" ? axis.knots : regular(axis, 11 * letter);
  const found = [];
  let end = -Infinity;
  for (const time of times) {
    const x = place(axis, time);
    const text = label(time, found.at(-1)?.time, axis.to - axis.from);
    const wide = text.length * letter;
    const start = Math.min(Math.max(x - wide / 2, axis.left), axis.right - wide);
    if (start < end + 2 * letter) continue;
    found.push({ time, x, start, text });
    end = start + wide;
  }
  return found;
}

/**
 * True for what a clock can show. Times of a shard may count something else.
 * @param {number} time
 */
export function isClockTime(time) {
  return time >= DAY_MS && time <= YEAR_9999_MS;
}

/**
 * @param {Axis} axis
 * @param {number} apart
 */
function regular({ from, to, left, right }, apart) {
  const least = ((to - from) * apart) / Math.max(right - left, 1);
  const step = STEPS.find((one) => one >= least) ?? least;
  // Full hours and days are those of the viewer's zone, which may have two in a year. Zones are whole
  // quarters of an hour: finer steps are the same in each. Nor could a day more be walked in them, of
  // milliseconds there are 86 million in it.
  const hasZone = step >= QUARTER_MS && isClockTime(from);
  const [first, end] = hasZone ? [from - DAY_MS, to + DAY_MS] : [from, to];
  const start = Math.floor(first / step) * step;
  const times = [];
  // Counted from the first one: of numbers as large as nanoseconds since 1970, n + 1 may be n.
  for (let n = 0; n * step <= end - start; n++) {
    const at = start + n * step;
    const time = at + (hasZone ? new Date(at).getTimezoneOffset() * 60_000 : 0);
    if (time >= from && time <= to) times.push(time);
  }
  return times;
}

/**
 * As much of a time as is news after the one before it.
 * @param {number} time
 * @param {number | undefined} before
 * @param {number} range
 */
function label(time, before, range) {
  if (!isClockTime(time)) return String(time);
  const at = new Date(time);
  const day = at.toLocaleDateString(undefined, { day: "numeric", month: "short" });
  const isMidnight = at.getHours() + at.getMinutes() + at.getSeconds() + at.getMilliseconds() === 0;
  if (isMidnight && range > DAY_MS) return day;
  const finest = at.getMilliseconds() ? "millisecond" : at.getSeconds() ? "second" : "minute";
  const clock = timeOfDay(at, finest);
  const isNewDay = before === undefined || new Date(before).toDateString() !== at.toDateString();
  return isNewDay && range > DAY_MS / 2 ? `${day}, ${clock}` : clock;
}
