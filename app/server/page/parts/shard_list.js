/**
 * Lists all shards of the location: how large each is, how far back it goes, and who holds it there.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../store.js").Row} Row
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { count, countOf, moment, size, span, visible } from "../words.js";
import { isClockTime } from "./axis.js";
import { drawFrontier } from "./frontier.js";
import { objectLink } from "./object_link.js";
import { drawSortedTable } from "./table.js";
import { drawTime } from "./time.js";

/**
 * @param {Page} page
 * @param {Row[]} rows
 * @returns {import("./table.js").Column[]}
 */
function columns(page, rows) {
  const largest = Math.max(1, ...rows.map((row) => row.size ?? 0));
  return [
    {
      id: "name",
      title: "Shard",
      style: "shard-name",
      value: (row) => row.name,
      draw: (row) => objectLink(page, row.name, "shard", "shard"),
    },
    frontier("since", "Since", "Reads at this time and later are exact"),
    frontier("upper", "Upper", "Everything before is settled"),
    {
      id: "history",
      title: "History",
      number: true,
      value: history,
      draw: (row) => span(history(row)),
    },
    {
      ...number("holds", "Holds"),
      hint: "Readers that keep history, or blobs of older states",
    },
    {
      id: "held_back",
      title: "Held back by",
      hint: "The reader that keeps the most history for itself alone, and how much",
      wide: true,
      style: "shard-held",
      value: (row) => row.held_back,
      draw: drawHeldBack,
    },
    number("records", "Rows"),
    {
      id: "size",
      title: "Size",
      number: true,
      value: (row) => row.size,
      draw: (row) => drawSize(row.size, largest),
    },
    number("parts", "Parts"),
    number("batches", "Batches"),
    {
      // They are looked into in turn: of thousands, some minutes ago.
      id: "seen",
      title: "As of",
      hint: "When the shard was last looked into: what stands here was so then",
      number: true,
      wide: true,
      value: (row) => row.seen_at,
      draw: (row) => drawTime(row.seen_at),
    },
  ];
}

/**
 * @param {string} id
 * @param {string} title
 * @param {string} hint
 * @returns {import("./table.js").Column}
 */
function frontier(id, title, hint) {
  // The end of all times comes after every other.
  const value = (/** @type {Row} */ row) => Number(row[id] ?? Infinity);
  return { id, title, hint, number: true, wide: true, value, draw: (row) => drawFrontier(row[id]) };
}

/**
 * @param {string} id
 * @param {string} title
 * @returns {import("./table.js").Column}
 */
function number(id, title) {
  const value = (/** @type {Row} */ row) => row[id];
  return { id, title, number: true, wide: true, value, draw: (row) => count(row[id]) };
}

/** @param {Row} row */
function drawHeldBack({ held_back: ms, held_back_by: who }) {
  if (!who) return html`<span class="muted">nobody</span>`;
  return html`<bdi>${visible(who, 60)}</bdi> <span class="more">for ${span(ms)}</span>`;
}

/**
 * @param {number | null} bytes
 * @param {number} largest
 */
function drawSize(bytes, largest) {
  return html`${size(bytes)}
    <svg class="size-bar" width="48" height="6" aria-hidden="true">
      <rect width="48" height="6" rx="3" />
      <rect class="part" width=${(48 * (bytes ?? 0)) / largest} height="6" rx="3" />
    </svg>`;
}

/** @param {Page} page */
export function drawShardList(page) {
  const rows = page.rows("shards");
  const error = page.error("shards");
  if (!rows)
    return html`<h1>Shards</h1>
      <p class="empty" role="status">
        ${error ? visible(error.message, 400) : "Asking for the shards…"}
      </p>`;
  const wanted = (page.query.get("q") ?? "").toLowerCase();
  const found = rows.filter((row) => String(row.name).toLowerCase().includes(wanted));
  const bytes = rows.reduce((sum, row) => sum + (row.size ?? 0), 0);
  return html`<div class="tool shards">
    <header class="screen-head">
      <div>
        <h1>Shards</h1>
        <p class="aside">
          ${countOf(rows.length, "shard")},
          ${size(bytes)}${drawAge(page, rows)}
        </p>
      </div>
      <input
        type="search"
        class="filter"
        placeholder="Filter by name"
        aria-label="Filter shards by name"
        .value=${wanted}
        @input=${(/** @type {Event} */ event) =>
          page.choose({ q: /** @type {HTMLInputElement} */ (event.target).value })}
      />
    </header>
    ${
      found.length
        ? drawSortedTable(page, {
            id: "shards",
            title: "Shards",
            style: "shard-table",
            columns: columns(page, rows),
            rows: largestFirst(found),
            key: (row) => row.name,
          })
        : html`<p class="empty card">
            ${rows.length ? "No shard has such a name." : "There are no shards in this location yet."}
          </p>`
    }
  </div>`;
}

/**
 * How old what stands here is: the shards are looked into in turn.
 * @param {Page} page
 * @param {Row[]} rows
 */
function drawAge(page, rows) {
  const seen = rows.flatMap((row) => moment(row.seen_at) ?? []);
  if (!seen.length) return nothing;
  const age = Math.max(1_000, page.now - Math.min(...seen));
  return ` – all looked into within the last ${span(age)}`;
}

/**
 * How far back a shard can be read, in ms.
 * @param {Row} row
 */
function history({ since, upper }) {
  // Nothing was written up to a since of 0: that is no history of 50 years.
  return since == null || upper == null || !isClockTime(since) ? null : upper - since;
}

/**
 * Of equal size by name: a row that has changed stands last among those of the store, and would leave
 * its place.
 * @param {Row[]} rows
 */
function largestFirst(rows) {
  return [...rows].sort((a, b) => (b.size ?? 0) - (a.size ?? 0) || (a.name < b.name ? -1 : 1));
}
