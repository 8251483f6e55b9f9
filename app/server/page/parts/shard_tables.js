/**
 * Shows as tables what a shard's picture shows: its holds, batches, levels and rounds of maintenance.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../store.js").Row} Row
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { drawActions } from "./action.js";
import { drawCard, drawRowsTable } from "./card.js";
import { count, countOf, moment, size, span, visible } from "../words.js";
import { drawFrontier, isBefore } from "./frontier.js";
import { objectLink } from "./object_link.js";
import { batchKey } from "./shard_words.js";

/** Rows that are drawn before the reader asks for all. */
const FIRST = 20;

/**
 * A lease ends by itself when its owner is silent; a hold has to be expired.
 * @param {Page} page
 * @param {Row[]} holds
 */
export function drawHoldsTable(page, holds) {
  const ordered = [...holds].sort(
    (a, b) => (b.gain ?? 0) - (a.gain ?? 0) || (b.only_size ?? 0) - (a.only_size ?? 0),
  );
  return drawCard(
    {
      id: "holds",
      title: "Holds",
      many: holds.length,
      none: "Nobody holds history of this shard.",
    },
    () =>
      drawRowsTable(
        "Holds",
        ["Who", "Kind", "Reads from", "Heard of", "History kept", "Bytes kept", ""],
        [2, 3, 4, 5],
        ordered.map(
          (hold) =>
            html`<tr role="row">
              <th scope="row" role="rowheader">
                <span class="owner">${visible(hold.owner || hold.name, 160)}</span>
                ${hold.owner ? html`<span class="more">${visible(hold.name, 80)}</span>` : nothing}
              </th>
              <td role="cell" data-column="Kind">
                ${hold.kind}${hold.overdue ? html` <span class="tag">overdue</span>` : nothing}
                ${hold.age == null ? nothing : html`<span class="more">${span(hold.age)} old</span>`}
              </td>
              <td role="cell" data-column="Reads from" class="number">
                ${drawFrontier(hold.since)}
              </td>
              <td role="cell" data-column="Heard of" class="number">
                ${hold.silent == null ? "–" : `${span(hold.silent)} ago`}
              </td>
              <td role="cell" data-column="History kept" class="number">
                ${hold.gain == null ? "–" : hold.gain ? span(hold.gain) : "none alone"}
              </td>
              <td role="cell" data-column="Bytes kept" class="number">
                ${hold.only_size === 0 ? "none alone" : size(hold.only_size)}
              </td>
              <td role="cell" class="does">
                ${
                  hold.kind === "hold"
                    ? drawActions(page, [
                        {
                          action: "expire_hold",
                          target: `${page.name}/${hold.name}`,
                          title: "Expire",
                          tries: true,
                          loses: true,
                        },
                      ])
                    : nothing
                }
              </td>
            </tr>`,
        ),
        "titled",
      ),
  );
}

/**
 * @param {Page} page
 * @param {Row} shard
 * @param {Row[]} batches
 */
export function drawBatchesTable(page, shard, batches) {
  const ordered = [...batches].sort((a, b) => b.lower - a.lower);
  const shown = shownRows(page, "batches", ordered);
  const many =
    shard.batches > batches.length
      ? `the newest ${count(batches.length)} of ${count(shard.batches)}`
      : "";
  return drawCard(
    {
      id: "batches",
      title: "Batches",
      many: batches.length,
      none: "There are no batches.",
      beside: many,
    },
    () => [
      drawRowsTable(
        "Batches, the newest first",
        ["From", "To", "Long", "Level", "Parts", "Updates", "Size"],
        [2, 3, 4, 5, 6],
        repeat(shown, batchKey, (/** @type {Row} */ batch) => {
          const { lower, upper, level, parts, updates, records, size: bytes } = batch;
          const isMerged = shard.since != null && isBefore(lower, shard.since);
          const key = batchKey(batch);
          const point = () => {
            page.local.pointed = key;
            page.redraw();
          };
          return html`<tr
            role="row"
            class=${page.local.pointed === key ? "pointed" : ""}
            @pointerenter=${point}
          >
            <th scope="row" role="rowheader" data-column="From">
              ${isMerged ? "before the since" : drawFrontier(lower)}
            </th>
            <td role="cell" data-column="To">${drawFrontier(upper)}</td>
            <td role="cell" data-column="Long" class="number">
              ${isMerged || upper == null ? "–" : span(upper - lower)}
            </td>
            <td role="cell" data-column="Level" class="number">${level ?? "–"}</td>
            <td role="cell" data-column="Parts" class="number">${count(parts)}</td>
            <td role="cell" data-column="Updates" class="number">${count(updates ?? records)}</td>
            <td role="cell" data-column="Size" class="number">${size(bytes)}</td>
          </tr>`;
        }),
        "titled brief",
      ),
      drawMore(page, "batches", batches.length),
    ],
  );
}

/**
 * What is known where batches are not told one by one.
 * @param {Row[]} levels
 */
export function drawLevelsTable(levels) {
  return drawCard(
    { id: "levels", title: "Levels", many: levels.length, none: "There are no batches." },
    () =>
      drawRowsTable(
        "Levels",
        ["Level", "Batches", "Parts", "Updates", "Size"],
        [0, 1, 2, 3, 4],
        [...levels]
          .sort((a, b) => b.level - a.level)
          .map(
            (row) =>
              html`<tr role="row">
                <th scope="row" role="rowheader" data-column="Level" class="number">${row.level}</th>
                <td role="cell" data-column="Batches" class="number">${count(row.batches)}</td>
                <td role="cell" data-column="Parts" class="number">${count(row.parts)}</td>
                <td role="cell" data-column="Updates" class="number">${count(row.updates)}</td>
                <td role="cell" data-column="Size" class="number">${size(row.size)}</td>
              </tr>`,
          ),
        "titled brief",
      ),
  );
}

/**
 * Rounds of one shard; or of all, each with its shard.
 * @param {Page} page
 * @param {Row[]} rounds
 */
export function drawRoundsTable(page, rounds) {
  const ordered = [...rounds].sort((a, b) => (a.occurred_at < b.occurred_at ? 1 : -1));
  const none = "No round of maintenance has found anything to do yet.";
  return drawCard({ id: "rounds", title: "Maintenance", many: rounds.length, none }, () => [
    drawRowsTable(
      "Rounds of maintenance, the newest first",
      [...(page.name ? [] : ["Shard"]), "When", "Took", "Merges", "Collected", "Swept", "Failed"],
      page.name ? [1, 2, 3, 4] : [2, 3, 4, 5],
      shownRows(page, "rounds", ordered).map(
        (round) =>
          html`<tr role="row">
            ${
              page.name
                ? nothing
                : html`<th scope="row" role="rowheader">
                    ${objectLink(page, round.shard, "", "shard")}
                  </th>`
            }
            <th scope="row" role="rowheader" data-column="When">
              ${drawFrontier(moment(round.occurred_at) ?? null)}
            </th>
            <td role="cell" data-column="Took" class="number">${span(round.took)}</td>
            <td role="cell" data-column="Merges" class="number">${count(round.merges)}</td>
            <td role="cell" data-column="Collected" class="number">
              ${round.collected == null ? "–" : countOf(round.collected, "blob")}
            </td>
            <td role="cell" data-column="Swept" class="number">
              ${round.swept == null ? "–" : countOf(round.swept, "blob")}
            </td>
            <td role="cell" data-column="Failed" class="sentence">
              ${(round.failed ?? []).map((/** @type {string} */ step) => visible(step)).join(", ") || "–"}
            </td>
          </tr>`,
      ),
      "titled brief",
    ),
    drawMore(page, "rounds", rounds.length),
  ]);
}

/**
 * @param {Page} page
 * @param {string} key
 * @param {Row[]} rows
 */
function shownRows(page, key, rows) {
  return page.local[`all ${key}`] ? rows : rows.slice(0, FIRST);
}

/**
 * @param {Page} page
 * @param {string} key
 * @param {number} many
 */
function drawMore(page, key, many) {
  if (many <= FIRST || page.local[`all ${key}`]) return nothing;
  const open = () => {
    page.local[`all ${key}`] = true;
    page.redraw();
  };
  return html`<p class="cut">
    <button class="quiet" @click=${open}>Show all ${count(many)}</button>
  </p>`;
}
