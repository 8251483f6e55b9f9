/**
 * The place of an object's contents, and who keeps their history; its checkpoint; and where Spark
 * shows its query.
 *
 * @typedef {import("../../main.js").Page} Page
 * @typedef {import("../../store.js").Row} Row
 */
import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { drawFrontier } from "../frontier.js";
import { drawTime } from "../time.js";
import { count, size, span, visible } from "../../words.js";
import { drawAbsent, drawFacts, drawScroll, drawSection, theRow } from "./bits.js";

/** @param {Page} page */
export function drawShard(page) {
  const shard = theRow(page, "shard");
  if (!shard) return nothing;
  const readable = shard.since == null ? null : drawFrontier(shard.since);
  const content = html`${drawFacts([
      ["Readable from", readable],
      ["Settled up to", shard.upper == null ? "the end: it is finished" : drawFrontier(shard.upper)],
      ["Retention", shard.retain == null ? "as long as somebody reads" : span(shard.retain)],
      ["Rows", count(shard.records)],
      ["Size", size(shard.size)],
      ["Updates", count(shard.updates)],
      ["Parts", count(shard.parts)],
      ["Batches", count(shard.batches)],
      ["Kept for old states only", shard.dropped_size == null ? null : size(shard.dropped_size)],
      ["Looked into", drawTime(shard.seen_at)],
    ])}
    <h3>Holds</h3>
    ${drawHolds(page)}`;
  return drawSection("shard", "Shard", content, {
    aside: html`<a href=${page.address("shard", shard.name)}>Time axis and maintenance</a>`,
  });
}

/** @param {Page} page */
function drawHolds(page) {
  const holds = [...(page.rows("holds") ?? [])].sort((a, b) => (b.behind ?? 0) - (a.behind ?? 0));
  if (!holds.length) return drawAbsent("Nobody holds back its history.");
  return drawScroll("Holds", html`<table class="numbers titled" role="table" aria-label="Holds">
      <thead role="rowgroup">
        <tr role="row">
          <th scope="col" role="columnheader">Owner</th>
          <th scope="col" role="columnheader">Kind</th>
          <th scope="col" role="columnheader">Keeps history of</th>
          <th scope="col" role="columnheader">Bytes for it alone</th>
          <th scope="col" role="columnheader">Silent for</th>
        </tr>
      </thead>
      <tbody role="rowgroup">
        ${holds.map(
          (hold) =>
            html`<tr role="row">
              <th scope="row" role="rowheader">${visible(hold.owner, 80)}</th>
              <td role="cell" data-column="Kind" class="word">
                ${visible(hold.kind)}${hold.overdue
                ? html` <span class="tag">overdue</span>` : nothing}
              </td>
              <td role="cell" data-column="Keeps history of">${span(hold.behind)}</td>
              <td role="cell" data-column="Bytes for it alone">${size(hold.only_size)}</td>
              <td role="cell" data-column="Silent for">${span(hold.silent)}</td>
            </tr>`,
        )}
      </tbody>
    </table>`);
}

/** @param {Page} page */
export function drawSpark(page) {
  const object = theRow(page, "object");
  const more = theRow(page, "details");
  const ui = webAddress(more?.spark_ui);
  const facts = drawFacts([
    [
      "Spark's UI",
      ui
        ? html`<a href=${ui} rel="noreferrer" target="_blank">its streaming query</a>`
        : more
          ? "not on"
          : null,
    ],
    ["Query", code(object?.query_id)],
    ["Run", code(object?.run_id)],
    ["Checkpoint", code(more?.checkpoint)],
    ["Incarnation", object?.epoch ? `no.\u00a0${object.epoch.toLocaleString()}` : null],
    ["Id for ever", code(object?.global_id)],
    ["Created", object?.created_at ? drawTime(object.created_at) : null],
    ["Right from", object?.as_of == null ? null : drawFrontier(object.as_of)],
  ]);
  return drawSection("spark", "In Spark", facts);
}

/** @param {unknown} text  An address that is opened must be one of the web. */
function webAddress(text) {
  const known = typeof text === "string" && /^https?:\/\//.test(text);
  return known ? /** @type {string} */ (text) : undefined;
}

/** @param {unknown} text */
function code(text) {
  return text ? html`<code>${visible(text)}</code>` : null;
}
