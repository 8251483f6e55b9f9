/**
 * Draws rounds of maintenance as marks on a shard's axis: those that would cover each other are one.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../store.js").Row} Row
 * @typedef {import("./axis.js").Axis} Axis
 */
import { nothing, svg } from "../vendor/lit-html/lit-html.js";
import { moment } from "../words.js";
import { place } from "./axis.js";
import { roundKey } from "./shard_words.js";

/** Rounds that are closer than this are one mark: their number has three digits. */
const MARK_PX = 22;

/**
 * @typedef {{ key: string, x: number, kind: keyof typeof ROUND_PATHS, rounds: Row[] }} Mark
 */

/**
 * Rounds by their place: those that would cover each other are one mark, of their most telling kind.
 * @param {Axis} axis
 * @param {Row[]} rounds
 * @returns {Mark[]}
 */
export function gatherRounds(axis, rounds) {
  /** @type {Mark[]} */
  const marks = [];
  const placed = rounds
    .map((round) => ({ round, x: place(axis, moment(round.occurred_at) ?? axis.from) }))
    .sort((a, b) => a.x - b.x);
  for (const { round, x } of placed) {
    const last = marks.at(-1);
    const kind = roundKind(round);
    if (!last || x - last.x >= MARK_PX) {
      marks.push({ key: roundKey(round), x, kind, rounds: [round] });
      continue;
    }
    last.rounds.push(round);
    if (ROUND_KINDS.indexOf(kind) < ROUND_KINDS.indexOf(last.kind)) last.kind = kind;
  }
  return marks;
}

/**
 * @param {Page} page
 * @param {Mark} mark
 * @param {number} y
 */
export function roundMark(page, { key, x, kind, rounds }, y) {
  return svg`<g class="round ${kind} ${key === page.local.pointed ? "pointed" : ""}" data-key=${key}>
    <rect class="reach" x=${x - MARK_PX / 2} y=${y - 3} width=${MARK_PX} height="30" />
    <path d=${ROUND_PATHS[kind](x, y + 7)} />
    ${rounds.length > 1 ? svg`<text x=${x} y=${y + 25} text-anchor="middle">${rounds.length}</text>` : nothing}
  </g>`;
}

/**
 * A round is shown as the most telling thing that it did.
 * @param {Row} round
 */
export function roundKind(round) {
  if (round.failed?.length) return "failed";
  if (round.swept) return "sweep";
  if (round.collected) return "collection";
  return "merge";
}

/**
 * The most telling first.
 * @type {(keyof typeof ROUND_PATHS)[]}
 */
export const ROUND_KINDS = ["failed", "sweep", "collection", "merge"];

export const ROUND_PATHS = {
  merge: (/** @type {number} */ x, /** @type {number} */ y) => `M${x} ${y - 5}l5 9h-10z`,
  collection: (/** @type {number} */ x, /** @type {number} */ y) => `M${x - 4} ${y - 4}h8v8h-8z`,
  sweep: (/** @type {number} */ x, /** @type {number} */ y) =>
    `M${x - 5} ${y}a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z`,
  failed: (/** @type {number} */ x, /** @type {number} */ y) =>
    `M${x - 5} ${y - 5}l10 10M${x + 5} ${y - 5}l-10 10`,
};
