/**
 * Draws cards with a heading, and tables inside of them, for the screens of shards and the lane.
 */
import { html } from "../vendor/lit-html/lit-html.js";
import { count } from "../words.js";

/**
 * @param {object} given
 * @param {string} given.id
 * @param {string} given.title
 * @param {number} given.many  So many things are in it.
 * @param {string} given.none  Said if there are none.
 * @param {string} [given.beside]  Said beside the title; how many they are without it.
 * @param {() => unknown} draw
 */
export function drawCard({ id, title, many, none, beside = "" }, draw) {
  return html`<section class="card" aria-labelledby=${`${id}-title`}>
    <header class="card-head">
      <h2 id=${`${id}-title`}>${title}</h2>
      <span class="more">${many ? beside || count(many) : ""}</span>
    </header>
    ${many ? draw() : html`<p class="empty">${none}</p>`}
  </section>`;
}

/**
 * A table that is moved sideways by itself where it is wider than its card.
 * @param {string} label
 * @param {string[]} columns  "" for one that has no heading.
 * @param {number[]} numbers  Those that stand at the right.
 * @param {unknown} rows
 * @param {string} [style]  Classes of the table. One that is `stacked` has the cells of a row below
 *   each other in a narrow window. One that is `titled` has each below its column's name (its
 *   `data-column`), and more of them on a line if it is `brief`. Rows and cells of both have to say
 *   their roles.
 */
export function drawRowsTable(label, columns, numbers, rows, style = "") {
  return html`<div class="rows-room" tabindex="0" role="group" aria-label=${label}>
    <table class="rows-table ${style}" role="table" aria-label=${label}>
      <thead role="rowgroup">
        <tr role="row">
          ${columns.map((title, at) =>
            title
              ? html`<th
                  scope="col"
                  role="columnheader"
                  class=${numbers.includes(at) ? "number" : ""}
                >
                  ${title}
                </th>`
              : html`<td></td>`,
          )}
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${rows}
      </tbody>
    </table>
  </div>`;
}
