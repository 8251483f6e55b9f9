/**
 * Shows rows of SQL as they are: nothing is rounded, NULL is told from text, numbers are at the right.
 *
 * @typedef {{ name: string, type: string }} Column
 * @typedef {import("./statement_run.js").Change} Change
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { guard } from "../vendor/lit-html/directives/guard.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { clock, count, countOf, utc, visible } from "../words.js";

/** Rows that are drawn at once; more are drawn on request. */
export const PAGE_ROWS = 1_000;

/** Characters of a value that stand in its cell; the rest opens on request. */
const CELL_MAX = 120;
const WHOLE_MAX = 100_000;

const NUMBERS = /^(u?int\d+|float|double|halffloat|decimal.*)$/;

/**
 * @param {object} given
 * @param {Column[]} given.columns
 * @param {unknown[][]} given.rows
 * @param {number} given.shown  So many of them are drawn.
 * @param {() => void} given.more  Called when the reader wants more.
 */
export function drawResultTable({ columns, rows, shown, more }) {
  // Drawn when it changes, and not once a second with the rest of the page.
  return html`${guard([rows, shown], () => drawTable(columns, rows.slice(0, shown)))}
  ${
    rows.length > shown
      ? html`<p class="cut" role="status">
          The first ${count(shown)} of ${countOf(rows.length, "row")}.
          <button class="quiet" @click=${more}>
            Show ${count(Math.min(PAGE_ROWS, rows.length - shown))} more
          </button>
        </p>`
      : nothing
  }`;
}

/**
 * @param {Column[]} columns
 * @param {unknown[][]} rows
 */
function drawTable(columns, rows) {
  const right = columns.map(({ type }) => NUMBERS.test(type));
  return html`<div class="rows" tabindex="0" role="group" aria-label="Rows">
    <table class="sql-rows">
      <thead>
        <tr>
          ${columns.map(
            ({ name, type }, at) =>
              html`<th scope="col" class=${right[at] ? "number" : ""} title=${type}>
                ${visible(name, 60)}
              </th>`,
          )}
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          (row) =>
            html`<tr>
              ${row.map((value, at) => drawCell(value, right[at]))}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/**
 * What a subscription has brought, the newest first.
 * @param {Column[]} columns
 * @param {Change[]} changes
 */
export function drawChangesTable(columns, changes) {
  const right = columns.map(({ type }) => NUMBERS.test(type));
  return guard(
    [changes],
    () =>
      html`<div class="rows" tabindex="0" role="group" aria-label="Changes">
        <table class="sql-rows">
          <thead>
            <tr>
              <th scope="col">Time</th>
              <th scope="col" class="number">Diff</th>
              ${columns.map(
                ({ name }, at) =>
                  html`<th scope="col" class=${right[at] ? "number" : ""}>
                    ${visible(name, 60)}
                  </th>`,
              )}
            </tr>
          </thead>
          <tbody>
            ${repeat(
              changes,
              (/** @type {Change} */ { id }) => id,
              (/** @type {Change} */ { time, diff, values }) =>
                html`<tr class=${diff > 0 ? "come" : "gone"}>
                  <td class="time" title=${utc(time)}>${clock(time)}</td>
                  <td class="number diff">${diff > 0 ? "+" : "−"}${Math.abs(diff)}</td>
                  ${values.map((value, at) => drawCell(value, right[at]))}
                </tr>`,
            )}
          </tbody>
        </table>
      </div>`,
  );
}

/**
 * @param {unknown} value
 * @param {boolean} isNumber
 */
function drawCell(value, isNumber) {
  if (value === null || value === undefined)
    return html`<td class=${isNumber ? "number null" : "null"}>NULL</td>`;
  const text = typeof value === "object" ? JSON.stringify(value) : String(value);
  if (isNumber) return html`<td class="number">${visible(text)}</td>`;
  if (text === "") return html`<td class="null">empty text</td>`;
  if (text.length <= CELL_MAX) return html`<td>${visible(text)}</td>`;
  return html`<td class="long">
    <details>
      <summary>${visible(text, CELL_MAX)}</summary>
      <pre>${visible(text, WHOLE_MAX)}</pre>
    </details>
  </td>`;
}
