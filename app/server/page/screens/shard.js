/**
 * The screen of a shard: what it keeps, for whom, and what would go. Without a name, all shards.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../main.js").Screen} Screen
 * @typedef {import("../store.js").Row} Row
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { drawShardList } from "../parts/shard_list.js";
import { drawShardChart } from "../parts/shard_chart.js";
import {
  drawBatchesTable,
  drawHoldsTable,
  drawLevelsTable,
  drawRoundsTable,
} from "../parts/shard_tables.js";
import { frontierText } from "../parts/frontier.js";
import { drawActions } from "../parts/action.js";
import { isClockTime } from "../parts/axis.js";
import { objectLink } from "../parts/object_link.js";
import { ago } from "../parts/time.js";
import { count, countOf, moment, size, span, utc, visible } from "../words.js";

/** @type {Screen} */
export const screen = {
  title: (name) => (name ? `Shard ${visible(name, 60)}` : "Shards"),
  follows(name, page) {
    const where = { shard: name };
    // What has no history need not be asked for at an earlier time.
    if (page.asOf !== undefined)
      return {
        maintenance: { relation: "maintenance", ...(name ? { where } : {}) },
        object: { relation: "objects", where: { id: name } },
      };
    /** @type {Record<string, import("../server.js").Selection>} */
    const all = { shards: { relation: "shards" } };
    // Not the holds: each is another row in each second, as it is older.
    if (!name) return all;
    return {
      shard: { relation: "shards", where: { name } },
      levels: { relation: "shard_levels", where },
      batches: { relation: "shard_batches", where },
      holds: { relation: "shard_holds", where },
      maintenance: { relation: "maintenance", where },
      object: { relation: "objects", where: { id: name } },
    };
  },
  draw(page) {
    if (page.asOf !== undefined) return drawEarlier(page);
    return page.name ? drawShard(page) : drawShardList(page);
  },
};

/**
 * Of an earlier moment only what was done to shards is known.
 * @param {Page} page
 */
function drawEarlier(page) {
  const rounds = page.rows("maintenance");
  const error = page.error("maintenance");
  return html`<div class="tool shard">
    <header class="screen-head">
      <div>
        ${
          page.name
            ? html`<p class="above"><a href=${page.address("shard")}>Shards</a></p>
                <h1>${visible(page.name, 120)}</h1>`
            : html`<h1>Shards</h1>`
        }
        <p class="aside">
          Of this time only the rounds of maintenance are known: no history is kept of what shards
          were made of, and of who held them.
        </p>
      </div>
    </header>
    ${error ? html`<p class="empty card">${visible(error.message, 400)}</p>` : nothing}
    ${rounds ? drawRoundsTable(page, rounds) : nothing}
  </div>`;
}

/** @param {Page} page */
function drawShard(page) {
  const rows = page.rows("shard");
  const [shard] = rows ?? [];
  const error = page.error("shard");
  return html`<div class="tool shard">
    <header class="screen-head">
      <div>
        <p class="above"><a href=${page.address("shard")}>Shards</a></p>
        <h1>${visible(page.name, 120)}</h1>
        ${shard ? html`<p class="aside">${drawSeen(page, shard)}</p>` : nothing}
      </div>
      ${shard ? drawShardActions(page) : nothing}
    </header>
    ${
      shard
        ? drawBody(page, shard)
        : html`<p class="empty" role="status">
            ${error ? visible(error.message, 400) : rows ? drawAbsent() : "Asking for this shard…"}
          </p>`
    }
  </div>`;
}

function drawAbsent() {
  return html`The application has not looked into a shard of this name. It looks into all of them in
  turn, some in each second: one that is new may be seen in a moment, one that was dropped is not
  listed any more.`;
}

/**
 * @param {Page} page
 * @param {Row} shard
 */
function drawBody(page, shard) {
  const batches = page.rows("batches") ?? [];
  const holds = page.rows("holds") ?? [];
  const maintenance = page.rows("maintenance") ?? [];
  const now = moment(shard.seen_at) ?? page.server.at;
  const known = page.rows("batches") !== undefined;
  return html`${drawNumbers(shard)}
  ${
    known && batches.length
      ? drawShardChart(page, { shard, batches, holds, maintenance, now })
      : html`<p class="empty card">
          ${
            known
              ? "The shard has no batches yet: nothing was written to it."
              : page.error("batches")
                ? "This application does not tell where in time its batches lie."
                : "Asking for the batches…"
          }
        </p>`
  }
  ${drawHoldsTable(page, holds)}
  ${batches.length ? drawBatchesTable(page, shard, batches) : drawLevelsTable(page.rows("levels") ?? [])}
  ${drawRoundsTable(page, maintenance)}`;
}

/** @param {Page} page */
function drawShardActions(page) {
  const target = page.name;
  return drawActions(page, [
    { action: "compact", target, title: "Compact", tries: true },
    { action: "collect", target, title: "Collect garbage", tries: true },
    { action: "sweep", target, title: "Sweep", tries: true },
  ]);
}

/** @param {Row} shard */
function drawNumbers(shard) {
  const { since, upper, size: bytes, records, updates, parts, batches } = shard;
  const kept = since == null || upper == null ? "" : `${span(upper - since)} of history`;
  const tiles = [
    drawTile("Since", frontierText(since), kept, since),
    drawTile(
      "Upper",
      frontierText(upper),
      upper == null ? "complete for ever" : "settled before it",
      upper,
    ),
    drawTile("Rows", count(records), countOf(updates, "update")),
    drawTile(
      "Size",
      size(bytes),
      shard.dropped_size == null ? "" : `${size(shard.dropped_size)} more for older states`,
    ),
    drawTile(
      "Batches",
      count(batches),
      shard.lost_parts
        ? `${count(shard.lost_parts)} of ${countOf(parts, "part")} are not in the store`
        : `${countOf(parts, "part")}, ${count(shard.empty_batches)} without updates`,
    ),
    drawTile(
      "Retention",
      shard.retain == null ? "as read" : span(shard.retain),
      shard.retain == null
        ? "history stays until nobody holds it"
        : "history stays so long at least",
    ),
  ];
  return html`<dl class="tiles">${tiles}</dl>`;
}

/**
 * @param {Page} page
 * @param {Row} shard
 */
function drawSeen(page, shard) {
  const [object] = page.rows("object") ?? [];
  return html`${
    object
      ? html`Contents of the ${visible(object.type)} ${objectLink(page, page.name)} · `
      : nothing
  }State
  ${count(shard.seqno)}, looked into ${ago(shard.seen_at, page.now)}`;
}

/**
 * @param {string} name
 * @param {unknown} value
 * @param {string} more
 * @param {number | null} [time]
 */
function drawTile(name, value, more, time) {
  return html`<div class="tile">
    <dt>${name}</dt>
    <dd title=${time && isClockTime(time) ? utc(time) : nothing}>${value}</dd>
    <dd class="more">${more}</dd>
  </div>`;
}
