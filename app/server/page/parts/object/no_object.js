/**
 * Says that there is no such object, with names that are near, and what is still known of one that
 * was dropped.
 *
 * @typedef {import("../../main.js").Page} Page
 */
import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { failed } from "../states.js";
import { drawTime } from "../time.js";
import { moment, visible } from "../../words.js";
import { drawHistory } from "./history.js";

const SHOWN = 6;

/**
 * The screen of one object, once its verdict is there; else why it is not.
 * @param {Page} page  It follows `verdicts`.
 * @param {(verdict: import("../../store.js").Row) => unknown} draw
 */
export function drawOfObject(page, draw) {
  const verdicts = page.rows("verdicts");
  const refused = page.error("verdicts");
  if (!verdicts && refused) return html`<div class="object-screen">${failed(refused)}</div>`;
  if (!verdicts) return html`<div class="object-screen" aria-busy="true"></div>`;
  const verdict = verdicts.find((row) => row.object_id === page.name);
  return verdict ? draw(verdict) : drawNoObject(page);
}

/** @param {Page} page */
function drawNoObject(page) {
  const names = (page.rows("verdicts") ?? []).map((row) => /** @type {string} */ (row.object_id));
  const near = nearNames(page.name, names).slice(0, SHOWN);
  const dropped = (page.rows("statusHistory") ?? [])
    .filter((row) => row.status === "dropped")
    .map((row) => moment(row.occurred_at) ?? 0);
  const end = dropped.length ? Math.max(...dropped) : undefined;
  const then = page.asOf === undefined ? "" : " at this time";
  return html`<div class="object-screen no-object">
    <header class="object-head">
      <h1>There is no object <span class="name">${visible(page.name)}</span>${then}</h1>
      ${end === undefined
        ? nothing : html`<p>One of its name was dropped, at ${drawTime(end)}.</p>`}
      ${
        near.length
          ? html`<p>Names that are near:</p>
              <ul class="near">
                ${near.map(
                (name) => html`<li><a class="name" href=${page.address("object", name)}
                  >${visible(name)}</a></li>`)}
              </ul>`
          : html`<p><a href=${page.address()}>All objects</a></p>`
      }
    </header>
    ${page.rows("verdictHistory")?.length
      ? html`<div class="panels">${drawHistory(page, end)}</div>` : nothing}
  </div>`;
}

/**
 * Names that a person may have meant, the nearest first: those that contain what was written, or
 * differ from it by few letters.
 * @param {string} written
 * @param {string[]} names
 */
function nearNames(written, names) {
  const wanted = written.toLowerCase();
  if (!wanted || wanted.length > 200) return [];
  return names
    .map((name) => ({ name, far: distance(wanted, name.toLowerCase()) }))
    .filter(
      ({ name, far }) =>
        far <= Math.max(1, wanted.length / 3) || isWithin(wanted, name.toLowerCase()),
    )
    .sort((one, other) => one.far - other.far)
    .map(({ name }) => name);
}

/**
 * @param {string} one
 * @param {string} other
 */
function isWithin(one, other) {
  return one.length > 2 && (other.includes(one) || one.includes(other));
}

/**
 * Letters to add, take away or change (Levenshtein).
 * @param {string} one
 * @param {string} other
 */
function distance(one, other) {
  let row = Array.from({ length: other.length + 1 }, (_, at) => at);
  for (let i = 1; i <= one.length; i++) {
    const next = [i];
    for (let j = 1; j <= other.length; j++)
      next[j] = Math.min(
        row[j] + 1,
        next[j - 1] + 1,
        row[j - 1] + (one[i - 1] === other[j - 1] ? 0 : 1),
      );
    row = next;
  }
  return row[other.length];
}
