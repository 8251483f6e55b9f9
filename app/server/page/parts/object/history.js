/**
 * The history of an object: how its verdict and its status have changed, newest first; and its
 * errors, with what to do.
 *
 * @typedef {import("../../main.js").Page} Page
 * @typedef {import("../../store.js").Row} Row
 */
import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { quoted, sqlAddress } from "../sql_link.js";
import { drawTime } from "../time.js";
import { count, countOf, moment, span, visible, visibleLines } from "../../words.js";
import { drawAbsent, drawKeptChoice, drawProse, drawSection, theRow } from "./bits.js";

const SHOWN = 12;

/**
 * @param {Page} page
 * @param {Row} verdict
 */
export function drawErrors(page, verdict) {
  const object = theRow(page, "object");
  const counts = theRow(page, "errorCounts");
  const status = theRow(page, "sourceStatus") ?? theRow(page, "sinkStatus");
  const { hints = [], namespaced = {} } = details(status?.details);
  const spaces = Object.entries(namespaced).filter(([, text]) => !verdict.because?.includes(text));
  // What the headline says already is not said twice.
  const said = Boolean(object?.error && verdict.because?.includes(object.error));
  if ((!object?.error || said) && !counts?.count && !spaces.length && hints.length < 2)
    return nothing;
  const content = html`${
    object?.error && !said
      ? html`<div class="refusal">
          <pre>${visibleLines(object.error, 4000)}</pre>
          ${object.hint ? html`<p>${drawProse(page, object.hint)}</p>` : nothing}
        </div>`
      : nothing
  }
  ${
    spaces.length
      ? html`<table>
          <thead>
            <tr>
              <th scope="col">Where</th>
              <th scope="col">What is wrong</th>
            </tr>
          </thead>
          <tbody>
            ${spaces.map(
              ([space, text]) =>
                html`<tr>
                  <th scope="row">${visible(space)}</th>
                  <td class="prose">${visible(text, 2000)}</td>
                </tr>`,
            )}
          </tbody>
        </table>`
      : nothing
  }
  ${
    hints.length > 1
      ? html`<ul class="plain">
          ${hints.slice(1).map(
          (/** @type {string} */ hint) => html`<li>${visible(hint, 1000)}</li>`)}
        </ul>`
      : nothing
  }
  ${drawLiveErrors(page, counts)}`;
  return drawSection("errors", "Errors", content, { wide: true });
}

/**
 * @param {Page} page
 * @param {Row | undefined} counts
 */
function drawLiveErrors(page, counts) {
  if (!counts?.count) return nothing;
  const others = (counts.erring_ids ?? []).filter((/** @type {string} */ id) => id !== page.name);
  return html`<p>
    Reads of it fail: ${countOf(counts.count, "live error")},
    ${count(counts.own)} of ${counts.own === 1 ? "it" : "them"} its own.
    ${
      others.length
        ? html`The others are those of
          ${others.map(
            (/** @type {string} */ id, /** @type {number} */ at) =>
              html`${at ? ", " : ""}<a class="name" href=${page.address("object", id)}
                  >${visible(id)}</a
                >`,
          )}.`
        : nothing
    }
    ${
      counts.own
        ? html`They can be read as rows of
            <a class="name" href=${sqlAddress(page, `SELECT * FROM ${quoted(`${page.name}_errors`)}`)}
              >${visible(page.name)}_errors</a
            >.`
        : nothing
    }
  </p>`;
}

/**
 * @param {unknown} text  JSON of a status.
 * @returns {{ hints?: string[], namespaced?: Record<string, string> }}
 */
function details(text) {
  try {
    return JSON.parse(String(text ?? "{}")) ?? {};
  } catch {
    return {};
  }
}

/**
 * @param {Page} page
 * @param {number} [ended]  When the object was dropped; undefined of one that is there.
 */
export function drawHistory(page, ended) {
  const kind = page.query.get("history") ?? "";
  const rows = kind === "status" ? statusChanges(page) : verdictChanges(page);
  const missing = page.error(kind === "status" ? "statusHistory" : "verdictHistory");
  const all = Boolean(page.local.allHistory);
  const shown = all ? rows : rows.slice(0, SHOWN);
  const content = shown.length
    ? html`<ol class="history">
          ${shown.map((row, at) => drawChange(page, row, rows[at - 1]?.at ?? ended))}
        </ol>
        ${
          rows.length > SHOWN
            ? html`<button type="button" class="more" @click=${() => showAll(page, !all)}>
                ${all ? "Show fewer" : `Show all ${rows.length.toLocaleString()}`}
              </button>`
            : nothing
        }`
    : drawAbsent(
        missing ? visible(missing.message, 400) : "Nothing has changed in the time that is kept.",
      );
  return drawSection("history", "History", content, {
    aside: drawKeptChoice(page, "History of", "history", [
      ["verdict", "Verdicts"],
      ["status", "Statuses"],
    ]),
  });
}

/**
 * @param {Page} page
 * @param {boolean} all
 */
function showAll(page, all) {
  page.local.allHistory = all;
  page.redraw();
}

/**
 * @typedef {{ at: number, word: string, because: string, more: string }} Change
 * @param {Page} page
 * @returns {Change[]}
 */
function verdictChanges(page) {
  return newestFirst(
    (page.rows("verdictHistory") ?? []).map((row) => ({
      at: moment(row.occurred_at) ?? 0,
      word: row.verdict,
      because: row.because ?? "",
      more: row.to_do ?? "",
    })),
  );
}

/**
 * @param {Page} page
 * @returns {Change[]}
 */
function statusChanges(page) {
  return newestFirst(
    (page.rows("statusHistory") ?? []).map((row) => ({
      at: moment(row.occurred_at) ?? 0,
      word: row.status,
      because: row.error ?? "",
      more: details(row.details).hints?.join("; ") ?? "",
    })),
  );
}

/** @param {Change[]} changes */
function newestFirst(changes) {
  return changes.sort((one, other) => other.at - one.at);
}

/**
 * @param {Page} page
 * @param {Change} change
 * @param {number | undefined} until  When the next one came, or the object was dropped; undefined of
 *   the newest one of an object that is there.
 */
function drawChange(page, change, until) {
  return html`<li>
    <span class="when">${drawTime(change.at)}</span>
    <div>
      <p>
        <b>${visible(change.word)}</b>
        <span class="lasted"
          >${until === undefined
            ? page.asOf === undefined ? "until now" : "until then"
            : `for ${span(until - change.at)}`}</span
        >
      </p>
      ${change.because ? html`<p class="why">${drawProse(page, change.because)}</p>` : nothing}
      ${change.more ? html`<p class="why">${drawProse(page, change.more)}</p>` : nothing}
    </div>
  </li>`;
}
