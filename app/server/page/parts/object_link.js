/**
 * Names of objects: as a link with the object's kind, and inside of a sentence.
 *
 * @typedef {import("../main.js").Page} Page
 */
import { html, svg } from "../vendor/lit-html/lit-html.js";
import { visible } from "../words.js";

/** What rows do at it: come in, are computed, are found, go out, are followed. */
const KINDS = /** @type {Record<string, unknown>} */ ({
  source: svg`<path d="M1 7h7M5 3.5 8.5 7 5 10.5M12 2v10" />`,
  view: svg`<path d="M2 3h10M2 7h10M2 11h6" />`,
  index: svg`<circle cx="6" cy="6" r="3.6" /><path d="m8.8 8.8 3.4 3.4" />`,
  sink: svg`<path d="M2 2v10M5 7h7M9 3.5 12.5 7 9 10.5" />`,
  subscribe: svg`<path d="M2 12a5 5 0 0 1 5-5M2 7a10 10 0 0 1 0 0M2 2.5A9.5 9.5 0 0 1 11.5 12" />`,
  shard: svg`<path d="M2 4h10v6H2ZM5 4v6M9 4v6" />`,
});

/**
 * Strokes of a kind, in a box of 14 by 14.
 * @param {string} kind
 */
export function kindMark(kind) {
  return KINDS[kind] ?? KINDS.view;
}

/** @param {string} kind  The sign of a kind, with its name for those who listen. */
export function kindSign(kind) {
  return html`<svg
    class="kind"
    viewBox="0 0 14 14"
    fill="none"
    stroke="currentColor"
    stroke-width="1.5"
    role="img"
    aria-label=${kind}
  >
    <title>${kind}</title>
    ${kindMark(kind)}
  </svg>`;
}

/**
 * @param {Page} page
 * @param {string} name
 * @param {string} [kind]  source, view, …: shown as a sign.
 * @param {string} [screen]  Where it leads: object, dataflow or shard.
 */
export function objectLink(page, name, kind = "", screen = "object") {
  return html`<a class="object" href=${page.address(screen, name)}
    >${kind ? kindSign(kind) : ""}<bdi>${visible(name, 80)}</bdi></a
  >`;
}

/**
 * A sentence of the application's, in which objects stand in backquotes: those that are known become
 * links.
 * @param {Page} page
 * @param {string | null | undefined} text
 * @param {(name: string) => boolean} isKnown
 * @param {number} longest  Of the text around the names; the rest is cut.
 */
export function drawSentence(page, text, isKnown, longest = 600) {
  const parts = String(text ?? "").split("`");
  const drawn = [];
  // Backquotes may be part of a name or of an error: only what is known is taken for a name.
  for (let at = 0; at < parts.length; at++) {
    const isName = at % 2 === 1 && at < parts.length - 1;
    if (isName && isKnown(parts[at])) {
      drawn.push(html`<a href=${page.address("object", parts[at])}
        ><bdi>${visible(parts[at], 60)}</bdi></a
      >`);
    } else if (isName) drawn.push(html`<code>${breakable(visible(parts[at], longest))}</code>`);
    else drawn.push(breakable(visible(parts[at], longest)));
  }
  return drawn;
}

/** @param {string} text  Its long names may go on in the next line, but not in the middle of a word. */
function breakable(text) {
  return text
    .split(/(?<=\S{12}[._/])(?=\w)|(?<=\w[._/])(?=\S{12})/)
    .flatMap((piece, at) => (at ? [html`<wbr />`, piece] : [piece]));
}
