/**
 * Draws how a statement went: rows, live changes, a strategy, or an error in the application's words.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("./statement_run.js").StatementRun} StatementRun
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { drawChoice } from "./choice.js";
import { drawFrontier } from "./frontier.js";
import { drawRefusal } from "./refusal.js";
import { PAGE_ROWS, drawChangesTable, drawResultTable } from "./result_table.js";
import { count, countOf, span, visible } from "../words.js";

/**
 * @param {Page} page
 * @param {StatementRun} run
 */
export function drawAnswer(page, run) {
  return html`<section class="card sql-answer" aria-labelledby="answer-title">
    <header class="card-head">
      <h2 id="answer-title">${run.isSubscription ? "Subscription" : "Result"}</h2>
      <p class="more"><span role="status">${describeState(run)}</span>${drawProgress(run)}</p>
      ${run.canGoOn ? drawGoOn(run) : nothing}
      <span class="rest"></span>
      ${run.isSubscription && run.columns.length ? drawShownChoice(page, run) : nothing}
    </header>
    ${run.error ? drawRefusal(run.error) : nothing}
    ${
      run.isSubscription
        ? drawSubscription(page, run)
        : run.error || isUnanswered(run)
          ? nothing
          : drawResult(page, run)
    }
  </section>`;
}

/** @param {StatementRun} run */
function drawGoOn(run) {
  return html`<button
    title="From where it was: nothing is lost, and nothing comes twice"
    @click=${() => run.goOn()}
  >
    Go on
  </button>`;
}

/** @param {StatementRun} run */
function isUnanswered({ isRunning, isCancelled }) {
  return isRunning || isCancelled;
}

/**
 * How it stands, for those who listen as well: said once, and not with every change.
 * @param {StatementRun} run
 */
function describeState({ took, isCancelled, error, isSubscription, rows, upper, end, isLive }) {
  if (took === undefined) {
    if (!isSubscription) return "Running…";
    if (isLive) return html`<span class="live">Live</span>`;
    return upper ? "Going on from where it was…" : "Waiting for the first changes…";
  }
  if (isSubscription) return error ? "It has broken off" : isCancelled ? "Ended by you" : end;
  const after = span(took);
  if (isCancelled) return `Cancelled after ${after}; the application ends it as well.`;
  if (error) return `Refused after ${after}`;
  return `${countOf(rows.length, "row")} in ${after}`;
}

/**
 * How far a subscription has come.
 * @param {StatementRun} run
 */
function drawProgress({ isSubscription, seen, upper }) {
  if (!isSubscription || !upper) return nothing;
  return html` · ${countOf(seen, "change")} · complete before
    ${drawFrontier(upper)}`;
}

/**
 * @param {Page} page
 * @param {StatementRun} run
 */
function drawResult(page, run) {
  const { columns, rows } = run;
  // Nothing else of a row would be shown: of a relation with both it has more.
  const isExplained = columns.map(({ name }) => name).join() === "strategy,reason";
  if (rows.length === 1 && isExplained) return drawStrategy(run);
  if (!rows.length)
    return html`<p class="empty">
      No rows. Columns: ${columns.map(({ name }) => visible(name, 60)).join(", ")}.
    </p>`;
  return drawRows(page, columns, rows);
}

/**
 * @param {Page} page
 * @param {import("./result_table.js").Column[]} columns
 * @param {unknown[][]} rows
 */
function drawRows(page, columns, rows) {
  const shown = page.local.shown ?? PAGE_ROWS;
  const more = () => {
    page.local.shown = shown + PAGE_ROWS;
    page.redraw();
  };
  return drawResultTable({ columns, rows, shown, more });
}

/**
 * What EXPLAIN has said.
 * @param {StatementRun} run
 */
function drawStrategy({ rows: [[strategy, reason]] }) {
  return html`<p class="strategy"><b>${visible(strategy)}</b> ${visible(reason, 2000)}</p>`;
}

/**
 * @param {Page} page
 * @param {StatementRun} run
 */
function drawSubscription(page, run) {
  const { columns, changes, contents, isRunning } = run;
  if (!columns.length && run.error) return nothing;
  if (!columns.length)
    return html`<p class="empty">
      ${
        isRunning
          ? "Nothing has changed yet; changes appear here as they happen."
          : "There were no changes."
      }
    </p>`;
  if (page.local.contents && contents)
    return drawRows(page, [{ name: "copies", type: "int64" }, ...columns], contentRows(run));
  return html`${drawChangesTable(columns, changes)}
  ${
    run.seen > changes.length
      ? html`<p class="cut">The newest ${count(changes.length)} of ${countOf(run.seen, "change")}.</p>`
      : nothing
  }`;
}

/** @type {WeakMap<StatementRun, { seen: number, rows: unknown[][] }>} */
const drawn = new WeakMap();

/**
 * The same array for as long as nothing has changed, so that it is not drawn anew.
 * @param {StatementRun} run
 */
function contentRows(run) {
  const before = drawn.get(run);
  if (before?.seen === run.seen) return before.rows;
  const rows = [...(run.contents?.values() ?? [])].map(({ copies, values }) => [copies, ...values]);
  drawn.set(run, { seen: run.seen, rows });
  return rows;
}

/**
 * @param {Page} page
 * @param {StatementRun} run
 */
function drawShownChoice(page, run) {
  if (!run.contents) return nothing;
  const options = /** @type {[string, string][]} */ ([
    ["changes", "Changes"],
    ["contents", "Contents"],
  ]);
  return drawChoice("Shown", options, page.local.contents ? "contents" : "changes", (value) => {
    page.local.contents = value === "contents";
    page.redraw();
  });
}
