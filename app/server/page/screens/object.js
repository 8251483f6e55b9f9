/**
 * The screen of one object: how it is, since when, and why.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../main.js").Screen} Screen
 * @typedef {import("../store.js").Row} Row
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { NOT_KEPT } from "../parts/object/bits.js";
import { drawDefinition, drawExplain, drawSample, drawSchema } from "../parts/object/contents.js";
import { drawDistribution, drawFreshness } from "../parts/object/freshness.js";
import { drawHeadline } from "../parts/object/headline.js";
import { drawErrors, drawHistory } from "../parts/object/history.js";
import { drawNeighbours } from "../parts/object/neighbours.js";
import { drawOfObject } from "../parts/object/no_object.js";
import { operatorRelations } from "../parts/object/operators.js";
import { drawSteps, drawThroughput, noteCounters } from "../parts/object/steps.js";
import { drawShard, drawSpark } from "../parts/object/storage.js";

/** @type {Screen} */
export const screen = {
  title: (name) => name,
  follows: (name, page) => ({
    ...historyRelations(name),
    // What has no history need not be asked for at an earlier time.
    ...(page.asOf === undefined ? presentRelations(name, page) : {}),
  }),
  draw: (page) => drawOfObject(page, (verdict) => drawObject(page, verdict)),
};

/**
 * Those that are known of earlier moments as well.
 * @param {string} name
 * @returns {Record<string, import("../server.js").Selection>}
 */
function historyRelations(name) {
  return {
    verdicts: { relation: "verdicts" },
    dependencies: { relation: "object_dependencies" },
    object: { relation: "objects", where: { id: name } },
    lag: { relation: "wallclock_lag", where: { object_id: name } },
    behind: { relation: "materialization_lag", where: { object_id: name } },
    lags: { relation: "wallclock_lag_history", where: { object_id: name } },
    percentiles: { relation: "wallclock_lag_percentiles", where: { object_id: name } },
    distribution: { relation: "wallclock_lag_distribution", where: { object_id: name } },
    verdictHistory: { relation: "verdict_history", where: { object_id: name } },
    statusHistory: { relation: "status_history", where: { object_id: name } },
    sourceStatus: { relation: "source_statuses", where: { id: name } },
    sinkStatus: { relation: "sink_statuses", where: { id: name } },
  };
}

/**
 * @param {string} name
 * @param {Page} page
 * @returns {Record<string, import("../server.js").Selection>}
 */
function presentRelations(name, page) {
  return {
    details: { relation: "object_details", where: { object_id: name } },
    steps: { relation: "step_phases", where: { object_id: name } },
    errorCounts: { relation: "error_counts", where: { export_id: name } },
    measurements: { relation: "measurements", where: { object_id: name } },
    hydrationTime: { relation: "hydration_times", where: { object_id: name } },
    shard: { relation: "shards", where: { name } },
    holds: { relation: "shard_holds", where: { shard: name } },
    sourceStatistics: { relation: "source_statistics", where: { id: name } },
    sinkStatistics: { relation: "sink_statistics", where: { id: name } },
    ...operatorRelations(name, page),
    // Sums since the start, where single micro-batches are not to be had.
    ...(page.error("steps") ? { elapsed: { relation: "scheduling_elapsed" } } : {}),
  };
}

/**
 * @param {Page} page
 * @param {Row} verdict
 */
function drawObject(page, verdict) {
  const { type } = verdict;
  const waits = page.rows("object")?.[0]?.phase === "uncreated";
  const isPresent = page.asOf === undefined;
  noteCounters(page, type);
  const hasContents = type === "source" || type === "view";
  // Of one that waits to be created there is its definition, and what it waits for.
  return html`<div class="object-screen">
    ${drawHeadline(page, verdict)}
    <div class="panels">
      ${drawErrors(page, verdict)} ${drawNeighbours(page, verdict)}
      ${waits ? nothing : html`${drawFreshness(page)} ${drawDistribution(page)}`}
      ${waits || !isPresent ? nothing : html`${drawSteps(page)} ${drawThroughput(page, type)}`}
      ${drawHistory(page)} ${drawDefinition(page, verdict)}
      ${waits || !isPresent ? nothing : drawExplain(page, verdict)} ${drawSchema(page, verdict)}
      ${waits || !hasContents ? nothing : drawSample(page)} ${drawShard(page)}
      ${waits || !isPresent ? nothing : drawSpark(page)}
    </div>
    ${isPresent ? nothing : html`<p class="absent">${NOT_KEPT}</p>`}
  </div>`;
}
