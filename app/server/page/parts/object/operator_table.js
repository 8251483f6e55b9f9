/**
 * The operators of a dataflow as a table, and all that is known of the one that was chosen.
 *
 * @typedef {import("../../main.js").Page} Page
 * @typedef {import("../../screens/dataflow.js").Times} Times
 * @typedef {import("./operators.js").Operator} Operator
 */
import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { count, countOf, percent, size, span, visible, visibleLines } from "../../words.js";
import { drawBar, drawFacts, drawScroll, drawSection } from "./bits.js";
import { sayLast, sayRate } from "../rates.js";
import { sharesOf } from "./operators.js";
import { PHASES } from "./steps.js";

/**
 * @param {Operator[]} operators
 * @param {Times} times
 * @param {Operator | undefined} chosen
 * @param {(operator: Operator) => void} choose
 */
export function drawOperators(operators, times, chosen, choose) {
  const shares = new Map(sharesOf(operators, times.of).map((one) => [one.operator.id, one.share]));
  const parts = operators.filter((one) => one.parent !== undefined);
  const content = drawScroll("Operators as a table", html`<table
      class="numbers operators titled brief"
      role="table"
      aria-label="Operators as a table"
    >
      <thead role="rowgroup">
        <tr role="row">
          <th scope="col" role="columnheader">Operator</th>
          <th scope="col" role="columnheader">Share</th>
          <th scope="col" role="columnheader">Time</th>
          <th scope="col" role="columnheader">Rows in</th>
          <th scope="col" role="columnheader">Rows out</th>
          <th scope="col" role="columnheader">Rows/s</th>
          <th scope="col" role="columnheader">Kept rows</th>
          <th scope="col" role="columnheader">Kept size</th>
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${parts.map((one) =>
          drawRow(one, times, shares.get(one.id), one.id === chosen?.id, choose))}
      </tbody>
    </table>`);
  return drawSection("all-operators", "All operators", content, { wide: true });
}

/**
 * @param {Operator} one
 * @param {Times} times
 * @param {number | undefined} share
 * @param {boolean} chosen
 * @param {(operator: Operator) => void} choose
 */
function drawRow(one, times, share, chosen, choose) {
  const rate = times.rows(one);
  const time = times.of(one);
  return html`<tr role="row" class=${chosen ? "is-chosen" : ""}>
    <th scope="row" role="rowheader">
      <button
        type="button"
        class="plain"
        aria-pressed=${chosen ? "true" : "false"}
        @click=${() => choose(one)}
      >
        <b>${visible(one.name, 60)}</b>
        <span class="piece"
          >${one.lir === undefined
            ? (PHASES[one.name] ?? "")
            : visible(one.detail.replaceAll(/\s+/g, " "), 90)}</span
        >
      </button>
    </th>
    <td role="cell" data-column="Share">${share === undefined ? "–" : percent(share)}</td>
    <td role="cell" data-column="Time">${span(time)}</td>
    <td role="cell" data-column="Rows in">${drawRows(one.rowsIn)}</td>
    <td role="cell" data-column="Rows out">${drawRows(one.rowsOut)}</td>
    <td role="cell" data-column="Rows/s">${sayRate(rate)}</td>
    <td role="cell" data-column="Kept rows">${count(one.kept?.records)}</td>
    <td role="cell" data-column="Kept size">${size(one.kept?.size)}</td>
  </tr>`;
}

/**
 * Rows since the start, and of how many of the micro-batches they are, if not of all.
 * @param {import("./operators.js").Rows | undefined} rows
 */
function drawRows(rows) {
  if (!rows || rows.counted === rows.observed) return count(rows?.rows);
  return html`${count(rows.rows)}
    <small class="of-batches">in ${count(rows.counted)} of ${countOf(rows.observed, "micro-batch", "micro-batches")}</small>`;
}

/**
 * All that is known of one operator.
 * @param {Page} page
 * @param {Operator} one
 * @param {Times} times
 * @param {(() => void) | undefined} leave  Undefined of one that nobody has chosen: it has the
 * most.
 */
export function drawOperator(page, one, times, leave) {
  const rate = times.rows(one);
  const content = html`${
    one.detail
      ? html`<pre
          class="sql"
          tabindex="0"
          aria-label="What it stands for"
        ><code>${visibleLines(one.detail)}</code></pre>`
      : nothing
  }
  ${one.lir === undefined && PHASES[one.name]
      ? html`<p>The phase of a micro-batch for ${PHASES[one.name]}.</p>` : nothing}
  ${drawFacts([
    [times.recent ? `Time in the ${sayLast(times.ms)}` : "Time since its start", span(times.of(one))],
    ["Rows in", drawRows(one.rowsIn)],
    ["Rows out", drawRows(one.rowsOut)],
    ["Rows out each second", rate === undefined ? null : sayRate(rate)],
    ["Rows kept", one.kept ? count(one.kept.records) : null],
    ["Size of what it keeps", one.kept ? size(one.kept.size) : null],
    ["In", one.kept?.batches == null ? null : countOf(one.kept.batches, "piece")],
    ["Strategy by itself", one.strategy && visible(one.strategy)],
    ["Because", one.reason && visible(one.reason, 400)],
    ["Number", String(one.id)],
  ])}
  ${drawDurations(page)}`;
  return drawSection("operator", visible(one.name, 60), content, {
    aside: leave
      ? html`<button type="button" class="more" @click=${leave}>Close</button>`
      : html`<span class="absent">has the largest share; choose another one</span>`,
  });
}

/** @param {Page} page  How often it took how long, by micro-batch. */
function drawDurations(page) {
  const rows = [...(page.rows("durations") ?? [])].sort((a, b) => a.duration_ns - b.duration_ns);
  if (!rows.length) return nothing;
  const most = Math.max(...rows.map((row) => row.count));
  return html`<table class="numbers shares">
    <thead>
      <tr>
        <th scope="col">A micro-batch took at most</th>
        <th scope="col">So often</th>
        <th scope="col"><span class="sr">As a bar</span></th>
      </tr>
    </thead>
    <tbody>
      ${rows.map(
        (row) =>
          html`<tr>
            <th scope="row">${span(row.duration_ns / 1e6)}</th>
            <td>${count(row.count)}</td>
            ${drawBar(row.count / most, "--series-1")}
          </tr>`,
      )}
    </tbody>
  </table>`;
}
