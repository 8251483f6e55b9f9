/**
 * Marks of a time line: where they are, which stand together, and which comes next. Nothing is
 * drawn here.
 *
 * @typedef {import("../store.js").Row} Row
 * @typedef {{ at: number, kind: string, object: string | null, message: string }} Mark
 *
 * @typedef {object} Bin  Marks that would stand on top of each other.
 * @property {number} from  Where the piece of time begins.
 * @property {Mark[]} marks  At least one, in order of time.
 */
import { moment } from "../words.js";

/** Kinds from the one that matters most, with the lane that each is drawn in. */
export const KINDS = /** @type {Record<string, { lane: number, one: string, many: string }>} */ ({
  error: { lane: 0, one: "error", many: "errors" },
  recovery: { lane: 1, one: "recovery", many: "recoveries" },
  pause: { lane: 1, one: "pause", many: "pauses" },
  start: { lane: 1, one: "start", many: "starts" },
  drop: { lane: 2, one: "drop", many: "drops" },
  action: { lane: 2, one: "action", many: "actions" },
  definition: { lane: 2, one: "definition", many: "definitions" },
  maintenance: { lane: 2, one: "round of maintenance", many: "rounds of maintenance" },
});

const DAY = 24 * 60 * 60_000;

const ORDER = Object.keys(KINDS);

/**
 * @param {Row[]} rows  Of the relation `events`.
 * @returns {Mark[]}  In order of time.
 */
export function marksOf(rows) {
  const marks = rows.map((row) => ({
    at: moment(row.occurred_at) ?? 0,
    kind: String(row.kind),
    object: row.object_id,
    message: String(row.message ?? ""),
  }));
  return marks.sort((a, b) => a.at - b.at);
}

/**
 * Marks of a piece of time, put together where they are less than `width` apart. Bins begin at
 * multiples of `width`, so that they stay where they are while the time goes on.
 * @param {Mark[]} marks
 * @param {number} from
 * @param {number} to
 * @param {number} width
 * @returns {Bin[]}
 */
export function binsOf(marks, from, to, width) {
  /** @type {Bin[]} */
  const bins = [];
  for (let at = firstAfter(marks, from - 1); at < marks.length && marks[at].at <= to; at++) {
    const begin = Math.floor(marks[at].at / width) * width;
    const last = bins.at(-1);
    if (last?.from === begin) last.marks.push(marks[at]);
    else bins.push({ from: begin, marks: [marks[at]] });
  }
  return bins;
}

/**
 * The mark that says most about several: of the kind that matters most, the first.
 * @param {Mark[]} marks  At least one.
 */
export function worst(marks) {
  return marks.reduce((best, mark) => (rank(mark) < rank(best) ? mark : best));
}

/**
 * The mark of each lane that has any, with what is drawn in it.
 * @param {Mark[]} marks
 * @returns {[number, Mark][]}
 */
export function lanesOf(marks) {
  /** @type {Map<number, Mark[]>} */
  const lanes = new Map();
  for (const mark of marks) {
    const lane = KINDS[mark.kind]?.lane ?? 2;
    lanes.set(lane, [...(lanes.get(lane) ?? []), mark]);
  }
  return [...lanes].map(([lane, those]) => [lane, worst(those)]);
}

/**
 * How many there are of each kind, from the one that matters most.
 * @param {Mark[]} marks
 * @returns {[string, number][]}
 */
export function countKinds(marks) {
  /** @type {Map<string, number>} */
  const counts = new Map();
  for (const { kind } of marks) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return [...counts].sort(([a], [b]) => ORDER.indexOf(a) - ORDER.indexOf(b));
}

/**
 * In words how many there are of each kind: "2 errors, 14 rounds of maintenance".
 * @param {Mark[]} marks
 */
export function sayKinds(marks) {
  return countKinds(marks)
    .map(([kind, many]) => `${many}\u00a0${KINDS[kind]?.[many === 1 ? "one" : "many"] ?? kind}`)
    .join(", ");
}

/**
 * The time of the nearest mark before or after a moment; undefined if there is none.
 * @param {Mark[]} marks
 * @param {number} at
 * @param {1 | -1} direction
 */
export function nextMark(marks, at, direction) {
  const after = firstAfter(marks, at);
  if (direction > 0) return marks[after]?.at;
  let before = after - 1;
  while (before >= 0 && marks[before].at >= at) before--;
  return marks[before]?.at;
}

/**
 * Marks at a moment.
 * @param {Mark[]} marks
 * @param {number} at
 */
export function marksAt(marks, at) {
  const found = [];
  for (let n = firstAfter(marks, at - 1); marks[n]?.at === at; n++) found.push(marks[n]);
  return found;
}

/**
 * Moments for the labels of an axis, at full hours or days of the viewer's zone.
 * @param {number} from
 * @param {number} to
 * @param {number} step  In ms; it divides a day, or is one or more of them.
 */
export function ticksOf(from, to, step) {
  const day = new Date(from);
  day.setHours(0, 0, 0, 0);
  const days = Math.floor(step / DAY);
  const ticks = [];
  for (let at = day.getTime(); at <= to; ) {
    if (at >= from) ticks.push(at);
    // A day of the calendar may have 23 or 25 hours.
    if (days) at = day.setDate(day.getDate() + days);
    else at += step;
  }
  return ticks;
}

/**
 * Place of the first mark that is later than a moment, by halving.
 * @param {Mark[]} marks
 * @param {number} at
 */
function firstAfter(marks, at) {
  let low = 0;
  let high = marks.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (marks[middle].at <= at) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** @param {Mark} mark */
function rank({ kind }) {
  const found = ORDER.indexOf(kind);
  return found < 0 ? ORDER.length : found;
}
