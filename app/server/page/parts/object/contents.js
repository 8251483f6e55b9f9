/**
 * The contents of an object, and what it is made by: definition, how it is kept up to date,
 * columns, and some of its rows at a time that was chosen.
 *
 * @typedef {import("../../main.js").Page} Page
 * @typedef {import("../../store.js").Row} Row
 * @typedef {{ columns: { name: string, type: string }[], rows: unknown[][] }} Table
 * @typedef {Table & { asOf: number | undefined, askedAt: number }} Sample
 */
import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { hasDate, visible, visibleLines, zone } from "../../words.js";
import { frontierText } from "../frontier.js";
import { drawRefusal } from "../refusal.js";
import { quoted, sqlAddress } from "../sql_link.js";
import { ago, drawTime } from "../time.js";
import { drawAbsent, drawFacts, drawScroll, drawSection, theRow } from "./bits.js";
import { operatorsOf } from "./operators.js";

const LIMITS = [20, 100, 500];

/** Characters of a value that are shown in its cell; the whole is on the screen for SQL. */
const CELL = 200;

/**
 * @param {Page} page
 * @param {Row} verdict
 */
export function drawDefinition(page, verdict) {
  const text = theRow(page, "object")?.definition;
  const content = isSql(verdict.type)
    ? html`<pre
        class="sql"
        tabindex="0"
        aria-label="SQL of ${visible(verdict.object_id)}"
      ><code>${visibleLines(text)}</code></pre>`
    : drawFacts([
        [verdict.type === "source" ? "Format" : "Of", visible(text)],
        ["Created", drawTime(theRow(page, "object")?.created_at)],
      ]);
  return drawSection(
    "definition",
    "Definition",
    text == null
      ? drawAbsent(
          page.asOf === undefined ? "It is not known yet." : "What it was then is not known.",
        )
      : content,
  );
}

/** @param {string} type */
function isSql(type) {
  return type === "view";
}

/**
 * How a view is kept up to date, and why not in a better way; then its operators.
 * @param {Page} page
 * @param {Row} verdict
 */
export function drawExplain(page, verdict) {
  const operators = operatorsOf(page).filter((one) => one.lir !== undefined);
  const steps = operators.length
    ? html`<ol class="plan">
        ${operators.map(
          ({ name, detail, strategy, reason }) =>
            html`<li>
              <b>${visible(name)}</b>
              ${detail && detail !== strategy ? html`<code>${visible(detail)}</code>` : nothing}
              ${strategy ? html`<span class="tag">${visible(strategy)}</span>` : nothing}
              ${reason ? html`<span class="reason">${visible(reason, 400)}</span>` : nothing}
            </li>`,
        )}
      </ol>`
    : nothing;
  const strategy = verdict.type === "view" ? drawStrategy(page, verdict.object_id) : nothing;
  if (strategy === nothing && steps === nothing) return nothing;
  const title = verdict.type === "view" ? "How it is kept up to date" : "What rows go through";
  return drawSection("explain", title, html`${strategy} ${steps}`, {
    aside: html`<a href=${page.address("dataflow", verdict.object_id)}
      >Operators with time and rows</a
    >`,
  });
}

const STRATEGIES = /** @type {Record<string, string>} */ ({
  linear: "From its inputs' changes alone",
  recompute: "By running its query anew",
});

/**
 * @param {Page} page
 * @param {string} name
 */
function drawStrategy(page, name) {
  const details = theRow(page, "details");
  if (details?.strategy) return drawReason(details.strategy, details.reason);
  if (!page.error("details") || page.asOf !== undefined) return nothing;
  if (!page.server.token) return drawTokenNeeded(page, "EXPLAIN VIEW");
  const asked = page.ask(`explain ${page.server.token}`, () =>
    page.server.post("/api/v1/sql", { query: `EXPLAIN VIEW ${quoted(name)}` }),
  );
  if (asked.error) return drawRefusal(asked.error);
  const [row] = /** @type {Table | undefined} */ (asked.value)?.rows ?? [];
  if (!row) return html`<p class="strategy absent">…</p>`;
  const [, strategy, reason] = row.map((value) => String(value ?? ""));
  return drawReason(strategy, reason);
}

/**
 * @param {string} strategy
 * @param {string | null} reason
 */
function drawReason(strategy, reason) {
  return html`<p class="strategy">
    <b>${STRATEGIES[strategy] ?? visible(strategy)}</b>
    <span class="tag">${visible(strategy)}</span>
    ${reason ? html`<br />Because ${visible(reason, 1000)}.` : nothing}
  </p>`;
}

/**
 * @param {Page} page
 * @param {Row} verdict
 */
export function drawSchema(page, verdict) {
  /** @type {Table["columns"] | undefined} */
  const columns = schemaOf(theRow(page, "details")?.schema) ?? sampleOf(page)?.value?.columns;
  if (!columns?.length) return nothing;
  return drawSection(
    "schema",
    "Columns",
    drawScroll(`Columns of ${visible(verdict.object_id)}`, html`<table>
        <thead>
          <tr>
            <th scope="col">Column</th>
            <th scope="col">Type</th>
          </tr>
        </thead>
        <tbody>
          ${columns.map(
            ({ name, type }) =>
              html`<tr>
                <th scope="row">${visible(name)}</th>
                <td><code>${visible(type)}</code></td>
              </tr>`,
          )}
        </tbody>
      </table>`),
  );
}

/**
 * @param {unknown} text  JSON.
 * @returns {{ name: string, type: string }[] | undefined}
 */
function schemaOf(text) {
  try {
    const columns = JSON.parse(String(text ?? "null"));
    return Array.isArray(columns) ? columns : undefined;
  } catch {
    return undefined;
  }
}

/**
 * The rows that were asked for, and of when they are; undefined if nobody has.
 * @param {Page} page
 */
function sampleOf(page) {
  const limit = Number(page.query.get("rows"));
  if (!limit || !page.server.token) return undefined;
  const query = sampleQuery(page, limit);
  const asOf = chosenTime(page);
  return page.ask(`${query} ${page.server.token}`, async () => {
    const askedAt = Date.now();
    /** @type {Table} */
    const table = await page.server.post("/api/v1/sql", { query });
    return { ...table, asOf, askedAt };
  });
}

/**
 * @param {Page} page
 * @param {number} limit
 */
function sampleQuery(page, limit) {
  const at = chosenTime(page);
  const time = at === undefined ? "" : ` AS OF ${at}`;
  return `SELECT * FROM ${quoted(page.name)} LIMIT ${Math.trunc(limit)}${time}`;
}

/**
 * @param {Page} page  That of the sample, else that which is looked at; undefined for the newest.
 */
function chosenTime(page) {
  return Number(page.query.get("as_of")) || page.asOf;
}

/** @param {Page} page */
export function drawSample(page) {
  const sample = sampleOf(page);
  const limit = Number(page.query.get("rows"));
  /** @param {SubmitEvent} event */
  const read = (event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const chosen = chosenTime(page);
    const said = Date.parse(String(form.get("as_of")));
    // In the hour that comes twice a field does not say which one: what nobody has changed stays.
    const at = said === Date.parse(localTime(chosen)) ? Number(chosen) : said;
    const again = sampleOf(page);
    page.choose({ rows: String(form.get("rows")), as_of: Number.isNaN(at) ? "" : String(at) });
    if (again && again === sampleOf(page)) again.again();
  };
  const shard = theRow(page, "shard");
  const form = html`<form class="sample-form" @submit=${read}>
    <label>
      Rows
      <select name="rows">
        ${LIMITS.map(
          (one) => html`<option value=${one} ?selected=${one === limit}>${one}</option>`)}
      </select>
    </label>
    <label>
      As of, ${zone(chosenTime(page) ?? Date.now())}
      <input
        type="datetime-local"
        name="as_of"
        step="1"
        .value=${localTime(chosenTime(page))}
        title="Left empty: the newest contents${shard?.since
          ? `. They can be read since ${frontierText(shard.since)}` : ""}"
      />
    </label>
    <button class="action">${sample?.value ? "Read again" : "Read rows"}</button>
    <span class="outcome" role="status">${sample?.loading ? "Reading…" : nothing}</span>
  </form>`;
  const content = page.server.token
    ? html`${form} ${sample ? drawSampleRows(sample) : nothing}`
    : drawTokenNeeded(page, "Reading rows");
  const sql = sqlAddress(page, sampleQuery(page, limit || LIMITS[0]));
  const aside = html`<a href=${sql}>In SQL</a>`;
  return drawSection("rows", "Rows", content, { aside, wide: true });
}

/** @param {{ value?: Sample, error?: any, loading: boolean }} sample */
function drawSampleRows({ value, error, loading }) {
  if (error && !loading) return drawRefusal(error);
  if (!value) return nothing;
  const when = drawSampleTime(value);
  if (!value.rows.length) return html`${when} ${drawAbsent("It has no rows at this time.")}`;
  const numeric = value.columns.map(({ type }) => /^(u?int|float|double|decimal)/.test(type));
  return html`${when} ${drawScroll("Rows that were read", html`<table>
      <thead>
        <tr>
          ${value.columns.map(
            ({ name, type }, at) =>
              html`<th scope="col" class=${numeric[at] ? "number" : ""} title=${type}>
                ${visible(name, 80)}
              </th>`,
          )}
        </tr>
      </thead>
      <tbody>
        ${value.rows.map(
          (row) =>
            html`<tr>
              ${row.map(
              (cell, at) => html`<td class=${numeric[at] ? "number" : ""}>${drawCell(cell)}</td>`)}
            </tr>`,
        )}
      </tbody>
    </table>`, "sample")}`;
}

/**
 * Rows stay as they were read: they must not pass for those of now.
 * @param {Sample} sample
 */
function drawSampleTime({ asOf, askedAt }) {
  const says =
    asOf === undefined
      ? html`Read ${ago(askedAt, Date.now())}: the newest contents of then.`
      : html`As of ${drawTime(asOf)}.`;
  return html`<p class="sample-time">${says}</p>`;
}

/** @param {unknown} value */
function drawCell(value) {
  if (value == null) return html`<span class="absent">NULL</span>`;
  return visible(typeof value === "object" ? JSON.stringify(value) : value, CELL);
}

/**
 * What needs the token, and where to enter it.
 * @param {Page} page
 * @param {string} what
 */
function drawTokenNeeded(page, what) {
  const ask = () => {
    page.dialog = "token";
    page.redraw();
  };
  return html`<p class="token-needed">
    <span>${what} needs the application's token, and this page has none.</span>
    <button type="button" class="action" @click=${ask}>Enter the token</button>
  </p>`;
}

/** @param {number | undefined} ms  As an input for times has it: in the viewer's zone. */
function localTime(ms) {
  if (ms === undefined) return "";
  const shifted = ms - new Date(ms).getTimezoneOffset() * 60_000;
  return hasDate(shifted) ? new Date(shifted).toISOString().slice(0, 19) : "";
}
