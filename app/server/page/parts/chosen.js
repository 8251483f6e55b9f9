/**
 * Shows one object beside the graph: its verdict, why, what to do, and whose fault it is.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../store.js").Row} Row
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { countVerdicts } from "../graph/model.js";
import { count, countOf, late, size } from "../words.js";
import { drawSentence, objectLink } from "./object_link.js";
import { ago, lasting } from "./time.js";
import { drawTone, drawVerdict } from "./verdict.js";

/**
 * @param {Page} page
 * @param {Row} row  Of `verdicts`.
 * @param {string[]} path  Names on the slowest path to it, its own last.
 * @param {Map<string, number | null>} lags
 * @param {(name: string) => Row | undefined} find  The verdict on an object.
 */
export function drawChosen(page, row, path, lags, find) {
  const isKnown = (/** @type {string} */ name) => find(name) !== undefined;
  const blamed = row.blame_id ? find(row.blame_id) : undefined;
  return html`<section class="chosen" aria-label="Chosen object">
    <h2>${objectLink(page, row.object_id, row.type)}</h2>
    <p class="chosen-verdict">
      ${drawVerdict(row)}<span class="muted">for ${lasting(row.since, page.now)}</span>
    </p>
    ${row.because
      ? html`<p class="because">${drawSentence(page, row.because, isKnown)}</p>`
      : nothing}
    ${row.to_do
      ? html`<div class="to-do">
          <h3>To do</h3>
          <p>${drawSentence(page, row.to_do, isKnown)}</p>
        </div>`
      : nothing}
    ${blamed
      ? html`<p class="blame"><span class="muted">To blame</span> ${objectLink(
          page,
          blamed.object_id,
          blamed.type,
        )} ${drawVerdict(blamed)}</p>`
      : nothing}
    ${path.length > 1 ? drawPath(page, path, lags, find) : nothing}
    <dl class="facts">
      <dt>Behind the clock</dt>
      <dd>${late(lags.get(row.object_id))}</dd>
      ${drawFact("Fresh again", row.ready_at && ago(row.ready_at, page.now))}
      ${drawFact("Starts again", row.retry_at && ago(row.retry_at, page.now))}
      ${drawFact(
        "Files waiting",
        row.files_waiting && `${count(row.files_waiting)} (${size(row.bytes_waiting)})`,
      )}
      ${drawFact("Messages behind", row.offsets_behind && count(row.offsets_behind))}
      ${drawFact("Rows", row.records != null && count(row.records))}
      ${drawFact("Size", row.size != null && size(row.size))}
      ${drawFact("Last change of rows", row.changed_at && ago(row.changed_at, page.now))}
    </dl>
  </section>`;
}

/**
 * @param {string} title
 * @param {unknown} value  Nothing is drawn without one.
 */
function drawFact(title, value) {
  return value ? html`<dt>${title}</dt><dd>${value}</dd>` : nothing;
}

/**
 * @param {Page} page
 * @param {string[]} path
 * @param {Map<string, number | null>} lags
 * @param {(name: string) => Row | undefined} find
 */
function drawPath(page, path, lags, find) {
  return html`<h3>Slowest path</h3>
    <ol class="path">
      ${path.map(
        (name) => html`<li>
          ${drawTone(find(name)?.tone ?? "idle")}${objectLink(page, name)}
          <span class="number muted">${late(lags.get(name))}</span>
        </li>`,
      )}
    </ol>`;
}

/**
 * In place of an object, if none is chosen: how many need a person, and how many have which verdict.
 * @param {Row[]} rows
 */
export function drawCounts(rows) {
  return html`<section class="chosen" aria-label="Verdicts">
    <h2>${needed(rows.filter((row) => row.bad).length)}</h2>
    <ul class="counts">
      ${countVerdicts(rows).map(
        (one) => html`<li>${drawVerdict(one)}<span class="number">${count(one.many)}</span></li>`,
      )}
    </ul>
    <p class="muted">Choose an object in the graph to see what it waits for.</p>
  </section>`;
}

/** @param {number} bad  How many objects need a person. */
function needed(bad) {
  if (!bad) return "No object needs a person";
  return `${countOf(bad, "object")} ${bad === 1 ? "needs" : "need"} a person`;
}
