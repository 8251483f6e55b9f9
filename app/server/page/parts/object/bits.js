/** Small parts that the screens of an object are made of. */
import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { drawChoice } from "../choice.js";
import { drawSentence } from "../object_link.js";

/**
 * @typedef {import("../../main.js").Page} Page
 * @typedef {import("../../store.js").Row} Row
 */

/**
 * A section with a heading, by which it can be found and linked to.
 * @param {string} id
 * @param {string} title
 * @param {unknown} content
 * @param {{ aside?: unknown, wide?: boolean }} [more]
 */
export function drawSection(id, title, content, more = {}) {
  const { aside = nothing, wide = false } = more;
  return html`<section
    class=${wide ? "panel wide" : "panel"}
    id=${id}
    aria-labelledby="${id}-title"
  >
    <header class="panel-head">
      <h2 id="${id}-title">${title}</h2>
      <div class="panel-aside">${aside}</div>
    </header>
    ${content}
  </section>`;
}

/**
 * Names and values, those that are not known left out.
 * @param {[string, unknown][]} facts
 */
export function drawFacts(facts) {
  const known = facts.filter(([, value]) => value != null && value !== "" && value !== "–");
  if (!known.length) return nothing;
  return html`<dl class="facts">
    ${known.map(
      ([name, value]) =>
        html`<div>
          <dt>${name}</dt>
          <dd>${value}</dd>
        </div>`,
    )}
  </dl>`;
}

/** Said while an earlier time is looked at. */
export const NOT_KEPT =
  "Steps, throughput, operators, the shard and Spark's part are known of the present only: no " +
  "history of them is kept.";

/** @param {unknown} text  In place of what is not there. */
export function drawAbsent(text) {
  return html`<p class="absent">${text}</p>`;
}

/**
 * Names by the rows of verdicts: a history has many sentences.
 * @type {WeakMap<Row[], Set<string>>}
 */
const namesOf = new WeakMap();

/**
 * Words of the application, with the objects that they name as links.
 * @param {Page} page
 * @param {unknown} text  Names stand between backticks.
 */
export function drawProse(page, text) {
  const verdicts = page.rows("verdicts") ?? [];
  let known = namesOf.get(verdicts);
  if (!known) namesOf.set(verdicts, (known = new Set(verdicts.map((row) => row.object_id))));
  return drawSentence(page, String(text ?? ""), (name) => Boolean(known?.has(name)), 4_000);
}

/**
 * A choice of one among a few, kept in the address.
 * @param {Page} page
 * @param {string} label
 * @param {string} name  In the query string.
 * @param {[string, string][]} options  Value and title; the first is what holds without a choice.
 */
export function drawKeptChoice(page, label, name, options) {
  const [[usual]] = options;
  return drawChoice(label, options, page.query.get(name) ?? usual, (value) =>
    page.choose({ [name]: value === usual ? "" : value }),
  );
}

/**
 * What may be wider than its panel, and is then moved sideways by itself.
 * @param {string} label
 * @param {unknown} content
 * @param {string} [style]  One more class.
 */
export function drawScroll(label, content, style = "") {
  return html`<div class="scroll ${style}" tabindex="0" role="region" aria-label=${label}>
    ${content}
  </div>`;
}

/**
 * A cell with a bar in it.
 * @param {number} share  0 to 1.
 * @param {string} colour  Variable of the style sheet.
 */
export function drawBar(share, colour) {
  return html`<td class="bar">
    <svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true">
      <rect width=${100 * share} height="8" fill="var(${colour})" />
    </svg>
  </td>`;
}

/**
 * The one row of a relation that is followed for one object.
 * @param {Page} page
 * @param {string} key
 * @returns {Row | undefined}
 */
export function theRow(page, key) {
  return page.rows(key)?.[0];
}
