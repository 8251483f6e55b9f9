/**
 * All objects with their verdicts, those first that need a person.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../store.js").Row} Row
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { count, late, moment, size } from "../words.js";
import { drawSentence, objectLink } from "./object_link.js";
import { drawSortedTable } from "./table.js";
import { lasting } from "./time.js";
import { TONES, drawVerdict } from "./verdict.js";

/** Rows of the table until all are asked for: the others are well, and found by the filter. */
const ROWS_MAX = 60;

/**
 * @param {Page} page
 * @param {Row[]} verdicts
 * @param {Map<string, number | null>} lags
 * @param {string} chosen
 * @param {(name: string) => boolean} isKnown
 */
export function drawVerdictTable(page, verdicts, lags, chosen, isKnown) {
  const typed = (page.query.get("filter") ?? "").toLowerCase();
  const found = urgentFirst(verdicts, lags).filter((row) => matches(row, typed));
  const isWhole = page.local.allRows || found.length <= ROWS_MAX + ROWS_MAX / 4;
  const shown = isWhole ? found : found.slice(0, ROWS_MAX);
  return html`<div class="section-head">
      <h2>Objects <span class="muted">${count(found.length)}</span></h2>
      <input
        type="search"
        placeholder="Filter by name, kind or verdict"
        aria-label="Filter objects"
        .value=${page.query.get("filter") ?? ""}
        @input=${(/** @type {Event} */ event) =>
          page.choose({ filter: /** @type {HTMLInputElement} */ (event.target).value })}
      />
    </div>
    ${drawSortedTable(page, {
      id: "verdicts",
      title: "Objects",
      style: "verdicts",
      rows: shown,
      key: (row) => row.object_id,
      isChosen: (row) => row.object_id === chosen,
      columns: [
        {
          id: "object",
          title: "Object",
          style: "cell-object",
          value: (row) => row.object_id,
          draw: (row) => objectLink(page, row.object_id, row.type),
        },
        {
          id: "verdict",
          title: "Verdict",
          style: "cell-verdict",
          value: (row) => `${TONES.indexOf(row.tone)} ${row.verdict}`,
          draw: drawVerdict,
        },
        {
          id: "lag",
          title: "Lag",
          hint: "how far it is behind the clock",
          number: true,
          style: "cell-lag",
          value: (row) => lags.get(row.object_id),
          draw: (row) => late(lags.get(row.object_id)),
        },
        {
          id: "because",
          title: "Because",
          style: "cell-because",
          value: (row) => row.because,
          draw: (row) => drawBecause(page, row, isKnown),
        },
        {
          id: "since",
          title: "For",
          hint: "how long it has had this verdict",
          number: true,
          wide: true,
          value: (row) => page.now - (moment(row.since) ?? page.now),
          draw: (row) => lasting(row.since, page.now),
        },
        {
          id: "rows",
          title: "Rows",
          hint: "rows of its newest contents",
          number: true,
          wide: true,
          value: (row) => row.records,
          draw: (row) => count(row.records),
        },
        {
          id: "size",
          title: "Size",
          hint: "of its newest contents, encoded",
          number: true,
          wide: true,
          value: (row) => row.size,
          draw: (row) => size(row.size),
        },
      ],
    })}
    ${isWhole ? nothing : html`<p class="more-rows">
          <button @click=${() => showAll(page)}>Show all ${count(found.length)}</button>
        </p>`}`;
}

/** @param {Page} page */
function showAll(page) {
  page.local.allRows = true;
  page.redraw();
}

/**
 * @param {Page} page
 * @param {Row} row
 * @param {(name: string) => boolean} isKnown
 */
function drawBecause(page, row, isKnown) {
  if (!row.because) return nothing;
  return html`<div class="because-short">${drawSentence(page, row.because, isKnown, 240)}</div>`;
}

/**
 * @param {Row} row
 * @param {string} typed
 */
function matches({ object_id: name, type, verdict }, typed) {
  return !typed || [name, type, verdict].some((text) => text.toLowerCase().includes(typed));
}

/**
 * What needs a person by its own fault, then what does because of that, then by tone, then by lag.
 * @param {Row[]} rows
 * @param {Map<string, number | null>} lags
 */
export function urgentFirst(rows, lags) {
  return [...rows].sort(
    (a, b) =>
      TONES.indexOf(a.tone) - TONES.indexOf(b.tone) ||
      Number(Boolean(a.blame_id)) - Number(Boolean(b.blame_id)) ||
      // By tens of seconds: rows would change places each second.
      Math.floor((lags.get(b.object_id) ?? 0) / 10_000) -
        Math.floor((lags.get(a.object_id) ?? 0) / 10_000) ||
      (a.object_id < b.object_id ? -1 : 1),
  );
}
