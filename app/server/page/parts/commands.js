/**
 * Shows the commands of the lane, the newest first, each with what it asks for.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../store.js").Row} Row
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { drawRowsTable } from "./card.js";
import { objectLink } from "./object_link.js";
import { drawTime } from "./time.js";
import { count, visible } from "../words.js";

const FIRST = 30;
const WHOLE_MAX = 20_000;

/** @param {Page} page */
export function drawCommands(page) {
  const rows = page.rows("commands");
  const wanted = page.query.get("q") ?? "";
  const sorted = [...(rows ?? [])].sort((a, b) => b.index - a.index);
  const found = wanted
    ? sorted.filter((row) => searchTextOf(row).includes(wanted.toLowerCase()))
    : sorted;
  const shown = page.local.allCommands ? found : found.slice(0, FIRST);
  const open = () => {
    page.local.allCommands = true;
    page.redraw();
  };
  return html`<section class="card" aria-labelledby="commands-title">
    <header class="card-head">
      <h2 id="commands-title">Commands</h2>
      <span class="more">${found.length ? `${count(found.length)}, the newest first` : ""}</span>
      <span class="rest"></span>
      <input
        type="search"
        class="filter"
        placeholder="Object, kind or text"
        aria-label="Filter commands"
        .value=${wanted}
        @input=${(/** @type {Event} */ event) =>
          page.choose({ q: /** @type {HTMLInputElement} */ (event.target).value })}
      />
    </header>
    ${
      shown.length
        ? drawTable(page, shown)
        : html`<p class="empty" role="status">
            ${
              rows
                ? wanted
                  ? "No command has this in it."
                  : page.asOf === undefined
                    ? "Nothing was asked for yet."
                    : "Nothing had been asked for by then."
                : "Asking for the commands…"
            }
          </p>`
    }
    ${
      found.length > shown.length
        ? html`<p class="cut">
            <button class="quiet" @click=${open}>Show all ${count(found.length)}</button>
          </p>`
        : nothing
    }
  </section>`;
}

/**
 * @param {Page} page
 * @param {Row[]} rows
 */
function drawTable(page, rows) {
  return drawRowsTable(
    "Commands",
    ["No.", "When", "Object", "What it did", "Asked by"],
    [0],
    repeat(
      rows,
      (/** @type {Row} */ row) => row.index,
      (/** @type {Row} */ row) => drawCommandRow(page, row),
    ),
    "stacked commands",
  );
}

/**
 * @param {Page} page
 * @param {Row} row
 */
function drawCommandRow(page, row) {
  const { index, producer, occurred_at: occurred, object_id: object } = row;
  // The roles are said, since a narrow window has the cells in another order.
  return html`<tr role="row">
    <td role="cell" class="number">${index}</td>
    <td role="cell" class="above">${drawTime(occurred)}</td>
    <th role="rowheader" scope="row">
      ${object === null ? html`<span class="none">–</span>` : objectLink(page, object)}
    </th>
    <td role="cell" class="did">${drawCommand(row)}</td>
    <td role="cell" class="asked beside">${visible(producer, 60)}</td>
  </tr>`;
}

/** @param {Row} row */
function drawCommand(row) {
  const said = visible(wordsOf(row), 240);
  if (!row.command) return said;
  return html`<details>
    <summary>${said}</summary>
    <pre>${visible(row.command, WHOLE_MAX)}</pre>
  </details>`;
}

/**
 * In the application's words; of a command that it has none for, its kind.
 * @param {Row} row
 */
function wordsOf({ says, kind }) {
  return says ?? String(kind).replaceAll("_", " ");
}

/**
 * What a command is looked for by.
 * @param {Row} row
 */
function searchTextOf(row) {
  const { object_id: object, kind, producer } = row;
  return `${object ?? ""}\n${kind}\n${producer}\n${wordsOf(row)}`.toLowerCase();
}
