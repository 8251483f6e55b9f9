/**
 * A table that is sorted by what its reader chooses.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../store.js").Row} Row
 *
 * @typedef {object} Column
 * @property {string} id
 * @property {string} title
 * @property {(row: Row) => any} value  What it is sorted by; text or a number, null comes last.
 * @property {(row: Row) => unknown} [draw]  What is shown; the value without it.
 * @property {boolean} [number]  Aligned to the right, and largest first.
 * @property {string} [hint]  What the column means, in a few words.
 * @property {boolean} [wide]  Left out in a narrow window.
 * @property {string} [style]  A class of its cells.
 *
 * @typedef {object} Table
 * @property {string} id  Of the table, on its screen.
 * @property {string} title  For those who listen.
 * @property {Column[]} columns
 * @property {Row[]} rows  In the order in which they stand until a column is chosen.
 * @property {(row: Row) => unknown} key  What tells rows apart.
 * @property {(row: Row) => boolean} [isChosen]
 * @property {string} [style]  A class of the table.
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";

const ORDER = new Intl.Collator(undefined, { numeric: true });

/**
 * @param {Page} page
 * @param {Table} table
 */
export function drawSortedTable(page, { id, title, columns, rows, key, isChosen, style = "" }) {
  const sorting = sortingOf(page, id);
  const column = columns.find((one) => one.id === sorting.by);
  const sorted = column ? sortRows(rows, column, sorting.down) : rows;
  return html`<div class="table-wrap">
    <table class=${style} role="table" aria-label=${title}>
      <thead role="rowgroup">
        <tr role="row">
          ${columns.map((one) => drawHeader(page, id, one, sorting))}
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${repeat(
          sorted,
          key,
          (/** @type {Row} */ row) => html`<tr role="row" aria-current=${isChosen?.(row) ? "true" : nothing}>
            ${columns.map(
              (one) => html`<td role="cell" class=${classOf(one)}>
                ${one.draw ? one.draw(row) : one.value(row)}
              </td>`,
            )}
          </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/**
 * @param {Page} page
 * @param {string} id
 * @param {Column} column
 * @param {{by: string, down: boolean}} sorting
 */
function drawHeader(page, id, column, sorting) {
  const isBy = sorting.by === column.id;
  const choose = () => {
    const down = isBy ? !sorting.down : Boolean(column.number);
    page.local[`sort ${id}`] = { by: column.id, down };
    page.redraw();
  };
  return html`<th
    scope="col"
    role="columnheader"
    class=${classOf(column)}
    aria-sort=${isBy ? (sorting.down ? "descending" : "ascending") : nothing}
  >
    <button class="plain" title=${column.hint ?? nothing} @click=${choose}>
      ${column.title}<svg class="arrow" viewBox="0 0 9 9" aria-hidden="true">
        <path d="M1 3h7L4.5 7.5Z" fill="currentColor" />
      </svg>
    </button>
  </th>`;
}

/** @param {Column} column */
function classOf({ number, wide, style = "" }) {
  return `${number ? "number" : ""} ${wide ? "wide-only" : ""} ${style}`.trim();
}

/**
 * @param {Page} page
 * @param {string} id
 * @returns {{by: string, down: boolean}}
 */
function sortingOf(page, id) {
  return page.local[`sort ${id}`] ?? { by: "", down: false };
}

/**
 * @param {Row[]} rows
 * @param {Column} column
 * @param {boolean} down
 */
function sortRows(rows, { value }, down) {
  const turn = down ? -1 : 1;
  return [...rows].sort((one, other) => {
    const [a, b] = [value(one), value(other)];
    if (a == null || b == null) return a == null ? (b == null ? 0 : 1) : -1;
    if (typeof a === "number" && typeof b === "number") return turn * (a - b);
    return turn * ORDER.compare(String(a), String(b));
  });
}
