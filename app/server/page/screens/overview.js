/**
 * The first screen: whether everything is fresh, and if not, whose fault it is.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../main.js").Screen} Screen
 * @typedef {import("../store.js").Row} Row
 * @typedef {import("../graph/model.js").Graph} Graph
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { noteRates, rateOf } from "../graph/edge_rates.js";
import { Layouts } from "../graph/layout.js";
import { makeGraph, slowestPath } from "../graph/model.js";
import { bringIntoSight } from "../graph/view.js";
import { drawChoice } from "../parts/choice.js";
import { drawChosen, drawCounts } from "../parts/chosen.js";
import { drawGraph } from "../parts/graph.js";
import { drawGraphList } from "../parts/graph_list.js";
import { drawHeadline } from "../parts/headline.js";
import { empty, failed } from "../parts/states.js";
import { drawVerdictTable, urgentFirst } from "../parts/verdict_table.js";

const NARROW = matchMedia("(max-width: 720px)");

/** @type {Layouts | undefined}  One worker for as long as the page is open. */
let layouts;

/** @type {Screen} */
export const screen = {
  title: () => "Overview",
  follows: (_name, page) => ({
    summary: { relation: "verdict_summary" },
    verdicts: { relation: "verdicts" },
    objects: { relation: "objects" },
    dependencies: { relation: "object_dependencies" },
    wallclock: { relation: "wallclock_lag" },
    slowest: { relation: "materialization_lag" },
    // What has no history need not be asked for at an earlier time.
    ...(page.asOf === undefined ? presentRelations(page) : {}),
  }),
  draw(page) {
    const verdicts = page.rows("verdicts");
    const error = page.error("verdicts");
    if (!verdicts) return error ? failed(error) : drawWaiting();
    noteRates(page);
    const [whole] = page.rows("summary") ?? [];
    const byName = new Map(verdicts.map((row) => [row.object_id, row]));
    const lags = new Map((page.rows("wallclock") ?? []).map((row) => [row.object_id, row.lag]));
    const isKnown = (/** @type {string} */ name) => byName.has(name);
    const chosen = choice(page, urgentFirst(verdicts, lags), byName);
    const path = slowestPath(chosen, page.rows("slowest") ?? []);
    const find = (/** @type {string} */ name) => byName.get(name);
    const row = byName.get(chosen);
    return html`
      ${drawHeadline(page, whole?.summary, isKnown)}
      ${verdicts.length
        ? html`${drawMap(page, { verdicts, lags, chosen, path, blame: row?.blame_id ?? "" }, () =>
            row ? drawChosen(page, row, path, lags, find) : drawCounts(verdicts),
          )}
          ${drawVerdictTable(page, verdicts, lags, chosen, isKnown)}`
        : empty(
            "Nothing runs here.",
            html`<code>./spark-submit.sh run PROJECT</code> creates the objects of a project.`,
          )}
    `;
  },
};

/**
 * @param {Page} page
 * @returns {Record<string, import("../server.js").Selection>}
 */
function presentRelations(page) {
  return {
    reads: { relation: "lir_mapping", where: { operator: "Source" } },
    channels: { relation: "dataflow_channel_operators" },
    messages: { relation: "message_counts" },
    ...(isFoldedByStrategy(page) ? { details: { relation: "object_details" } } : {}),
  };
}

/** As much room as the first rows will take. */
function drawWaiting() {
  return html`<div class="headline" aria-busy="true"><h1>…</h1></div>
    <div class="map"><div class="graph-box"></div></div>`;
}

/**
 * What was chosen; else the first that needs a person by its own fault.
 * @param {Page} page
 * @param {Row[]} verdicts
 * @param {Map<string, Row>} byName
 */
function choice(page, verdicts, byName) {
  const asked = page.query.get("object") ?? "";
  if (byName.has(asked)) return asked;
  return verdicts.find((row) => row.bad && !row.blame_id)?.object_id ?? "";
}

/**
 * @typedef {object} Seen
 * @property {Row[]} verdicts
 * @property {Map<string, number | null>} lags
 * @property {string} chosen
 * @property {string[]} path
 * @property {string} blame
 *
 * @param {Page} page
 * @param {Seen} seen
 * @param {() => unknown} drawBeside
 */
function drawMap(page, seen, drawBeside) {
  const isShown = !NARROW.matches || page.local.graphShown;
  const toggle = () => {
    page.local.graphShown = !page.local.graphShown;
    page.redraw();
  };
  const button = NARROW.matches
    ? html`<button class="show-graph" aria-expanded=${isShown} @click=${toggle}>
        ${isShown ? "Hide the graph" : "Show the graph"}
      </button>`
    : nothing;
  if (!isShown) return button;
  const { graph, drawn } = prepare(page, seen);
  return html`${button}
    <section class="map" aria-label="Graph">
      <div class="graph-box" id="graph-box">
        ${drawn ? drawGraph(page, drawn) : nothing}
        ${graph.isFolded ? drawFolds(page) : nothing}
      </div>
      ${drawBeside()}
      ${drawGraphList(graph, drawn?.rate)}
    </section>`;
}

/**
 * The graph of this moment, with the last layout of it.
 * @param {Page} page
 * @param {Seen} seen
 */
function prepare(page, { verdicts, lags, chosen, path, blame }) {
  const pairs = (page.rows("dependencies") ?? []).map(
    (row) => /** @type {[string, string]} */ ([row.referenced_object_id, row.object_id]),
  );
  const open = page.query.getAll("open");
  const graph = makeGraph(
    { verdicts, pairs, lags, strategies: strategiesOf(page) },
    chosen,
    path,
    open,
  );
  layouts ??= new Layouts(() => page.redraw());
  layouts.want(graph);
  const { placed } = layouts;
  if (!placed) return { graph, drawn: undefined };
  if (chosen && page.local.sighted !== chosen && placed.centres[chosen]) {
    page.local.sighted = chosen;
    bringIntoSight(page, placed, chosen);
  }
  const groups = new Map(graph.nodes.map((node) => [node.id, node.members.length > 0]));
  const choose = (/** @type {string} */ id) => {
    if (groups.get(id)) openGroups(page, [...open, id]);
    else page.choose({ object: id });
  };
  const rate = (/** @type {import("../graph/model.js").Edge} */ edge) => rateOf(page, edge.pairs);
  const drawn = { graph, placed, chosen, blamed: blame, path: new Set(path), rate, choose };
  return { graph, drawn };
}

/** @param {Page} page */
function isFoldedByStrategy(page) {
  return page.query.get("fold") === "strategy";
}

/**
 * Strategies of views by their names; undefined unless the graph is folded by them.
 * @param {Page} page
 * @returns {Map<string, string> | undefined}
 */
function strategiesOf(page) {
  const details = isFoldedByStrategy(page) && page.rows("details");
  if (!details) return undefined;
  return new Map(details.flatMap((row) => (row.strategy ? [[row.object_id, row.strategy]] : [])));
}

/**
 * @param {Page} page
 * @param {string[]} groups
 */
function openGroups(page, groups) {
  page.query.delete("open");
  for (const group of groups) page.query.append("open", group);
  page.choose({});
}

const FOLDS = /** @type {[string, string][]} */ ([
  ["", "Name"],
  ["strategy", "Strategy"],
]);

/** @param {Page} page */
function drawFolds(page) {
  const many = page.query.getAll("open").length;
  const fold = (/** @type {string} */ by) => page.choose({ fold: by, open: "" });
  return html`<div class="folds">
    <span>Folded by</span>
    ${drawChoice("Folded by", FOLDS, page.query.get("fold") ?? "", fold)}
    <span class="folds-hint">Choose a group to open it.</span>
    ${many
      ? html`<button class="plain" @click=${() => openGroups(page, [])}>Fold all</button>`
      : nothing}
  </div>`;
}
