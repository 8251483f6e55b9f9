/**
 * A verdict as a badge: shape, word and colour. Word and tone are the application's.
 *
 * @typedef {import("../store.js").Row} Row
 */
import { html, nothing, svg } from "../vendor/lit-html/lit-html.js";
import { visible } from "../words.js";

/** Each tone has a shape of its own: who does not see the colour sees that. */
const SHAPES = /** @type {Record<string, unknown>} */ ({
  good: svg`<circle cx="6" cy="6" r="4.5" fill="currentColor" />`,
  idle: svg`<circle cx="6" cy="6" r="4" fill="none" stroke="currentColor" stroke-width="2" />`,
  wait: svg`<path d="M6 .8 11.2 6 6 11.2.8 6Z" fill="currentColor" />`,
  bad: svg`<path d="M.8.8h10.4v10.4H.8Z" fill="currentColor" /><path
      class="cut" d="M6 2.8v3.9M6 8.2v1.4" stroke-width="1.6" />`,
});

/** The order in which a person wants to see tones. */
export const TONES = ["bad", "wait", "idle", "good"];

/**
 * What is inside of the shape of a tone, in a box of 12 by 12: for a drawing that is an `<svg>` already.
 * @param {string} tone
 */
export function toneMark(tone) {
  return SHAPES[tone] ?? SHAPES.idle;
}

/** @param {string} tone  The shape of a tone, in its colour. */
export function drawTone(tone) {
  return html`<svg class="shape tone-${tone}" viewBox="0 0 12 12" aria-hidden="true">
    ${toneMark(tone)}
  </svg>`;
}

/**
 * @param {Row | undefined} row  With `verdict` and `tone`, as in `verdicts`.
 */
export function drawVerdict(row) {
  if (!row) return nothing;
  return html`<span class="verdict tone-${row.tone}"
    >${drawTone(row.tone)}${visible(row.verdict)}</span
  >`;
}
