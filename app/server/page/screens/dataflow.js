/**
 * The screen of a dataflow: which operator of an object takes the time. It names the largest share
 * of the time, and judges nothing else.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../main.js").Screen} Screen
 * @typedef {import("../store.js").Row} Row
 * @typedef {import("../parts/object/operators.js").Operator} Operator
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { blocksOf, drawFlame } from "../parts/flame.js";
import { drawAbsent, drawKeptChoice, drawProse, drawSection } from "../parts/object/bits.js";
import { drawOfObject } from "../parts/object/no_object.js";
import { drawOperator, drawOperators } from "../parts/object/operator_table.js";
import {
  movementRelations,
  operatorRelations,
  operatorsOf,
  sharesOf,
} from "../parts/object/operators.js";
import { PHASES } from "../parts/object/steps.js";
import { drawOperatorGraph, NODES_MAX } from "../parts/operator_graph.js";
import { ratesOf, sayLast, sayRate } from "../parts/rates.js";
import { drawVerdict } from "../parts/verdict.js";
import { countOf, percent, size, visible } from "../words.js";

/** @type {Screen} */
export const screen = {
  live: true,
  title: (name) => `Dataflow of ${name}`,
  follows: (name, page) => ({
    verdicts: { relation: "verdicts" },
    object: { relation: "objects", where: { id: name } },
    lag: { relation: "wallclock_lag", where: { object_id: name } },
    ...operatorRelations(name, page),
    ...movementRelations(),
    ...(page.local.shown === undefined
      ? {}
      : {
          durations: { relation: "operator_durations_histogram", where: { id: page.local.shown } },
        }),
  }),
  draw: (page) => drawOfObject(page, (verdict) => drawDataflow(page, verdict)),
};

/** @param {Page} page */
function chosenOf(page) {
  return Number(page.query.get("operator")) || undefined;
}

/**
 * @param {Page} page
 * @param {Row} verdict
 */
function drawDataflow(page, verdict) {
  const operators = operatorsOf(page);
  const times = timesOf(page, operators);
  const chosen = operators.find((one) => one.id === chosenOf(page));
  const shown = chosen ?? sharesOf(operators, times.of)[0]?.operator;
  page.local.shown = shown?.id;
  /** @param {Operator} one */
  const choose = (one) =>
    page.choose({ operator: one.id === chosenOf(page) ? "" : String(one.id) });
  return html`<div class="object-screen dataflow-screen">
    <header class="object-head is-${verdict.tone}">
      <div class="headline-name">
        <p class="headline-kind">Dataflow</p>
        <h1><a class="name" href=${page.address("object", page.name)}>${visible(page.name)}</a></h1>
      </div>
      <div class="headline-do">${drawTimes(page, times.known)}</div>
      <div class="headline-says">
        <p class="headline-verdict">${drawVerdict(verdict)}</p>
        ${verdict.because ? html`<p>${drawProse(page, verdict.because)}</p>` : nothing}
        ${drawLargest(page, operators, times)}
      </div>
    </header>
    ${
      operators.length
        ? html`<div class="dataflow-panels">
            ${drawGraph(operators, times, chosen, choose)}
            <div class="dataflow-side">
              ${drawShares(operators, times, chosen, choose)}
              ${shown
              ? drawOperator(page, shown, times, chosen && (() => choose(chosen))) : nothing}
            </div>
            ${drawOperators(operators, times, chosen, choose)}
          </div>`
        : drawAbsent(
            page.rows("object")?.[0]?.phase === "uncreated"
              ? "It waits to be created, and has no operators yet."
              : "Its operators are not known yet.",
          )
    }
  </div>`;
}

/**
 * @typedef {object} Times
 * @property {(operator: Operator) => number | undefined} of  In ms.
 * @property {(operator: Operator) => number | undefined} rows  Out of it, each second.
 * @property {boolean} recent  They are of the last minute, or what is known of it.
 * @property {boolean} known  Those of the last minute are known.
 * @property {number} ms  How long that was; 0 for times since the start.
 *
 * @param {Page} page
 * @param {Operator[]} operators
 * @returns {Times}
 */
function timesOf(page, operators) {
  const rates = ratesOf(page);
  if (page.server.connected)
    for (const { id, elapsed, rowsOut } of operators) {
      rates.note(`time ${id}`, elapsed, page.server.at);
      if (rowsOut)
        rates.note(
          `rows ${id}`,
          rowsOut.rows,
          page.server.at,
          rowsOut.observed - rowsOut.counted,
        );
    }
  const whole = operators.find((one) => one.parent === undefined);
  const growth = whole && rates.lately(`time ${whole.id}`);
  const known = growth !== undefined;
  const recent = known && page.query.get("time") !== "start";
  return {
    of: ({ id, elapsed }) => (recent ? rates.growth(`time ${id}`)?.grown : elapsed),
    rows: ({ id }) => rates.lately(`rows ${id}`)?.perSecond,
    recent,
    known,
    ms: recent ? (growth?.ms ?? 0) : 0,
  };
}

/**
 * @param {Page} page
 * @param {boolean} known
 */
function drawTimes(page, known) {
  if (!known)
    return html`<span class="absent">Times since its start; those of the last minute follow</span>`;
  return drawKeptChoice(page, "Times of", "time", [
    ["minute", "Last minute"],
    ["start", "Since its start"],
  ]);
}

/**
 * The sentence: which operator takes the most of the time.
 * @param {Page} page
 * @param {Operator[]} operators
 * @param {Times} times
 */
function drawLargest(page, operators, times) {
  const [largest] = sharesOf(operators, times.of);
  const when = times.recent
    ? `the ${sayLast(times.ms)}`
    : "its time since it was started";
  if (!largest) {
    if (!operators.length) return nothing;
    return html`<p class="why-so">
      It has done no step ${times.recent ? `in ${when}` : "since it was started"}.
    </p>`;
  }
  const whole = operators.find((one) => one.parent === undefined);
  const busy = whole && times.recent ? (times.of(whole) ?? 0) / times.ms : undefined;
  const of = times.recent ? `the time of its steps in ${when}` : when;
  return html`<p class="why-so" role="status">
      <b><code>${labelOf(largest.operator)}</code> takes ${percent(largest.share)}</b> of ${of}.
    </p>
    ${
      busy === undefined
        ? nothing
        : html`<p class="absent">
            Its steps have taken ${percent(Math.min(1, busy))} of that time; for the rest it waited.
          </p>`
    }`;
}

/**
 * An operator in words: its kind, and the piece of SQL or the phase.
 * @param {Operator} operator
 */
export function labelOf({ name, detail, lir }) {
  if (lir === undefined) return PHASES[name] ? `${name} (${PHASES[name]})` : visible(name, 40);
  return detail
    ? `${visible(name, 40)} ${visible(detail.replaceAll(/\s+/g, " "), 60)}`
    : visible(name, 40);
}

/**
 * @param {Operator[]} operators
 * @param {Times} times
 * @param {Operator | undefined} chosen
 * @param {(operator: Operator) => void} choose
 */
function drawShares(operators, times, chosen, choose) {
  const blocks = blocksOf(operators, times.of, (one) =>
    one.lir === undefined ? one.name : labelOf(one),
  );
  const content = blocks.length
    ? html`${drawFlame(blocks, chosen?.id, choose)}
        <p class="note">
          Width is time: of phases by the clock, within addBatch in proportion to the time of
          Spark's tasks. Below an operator stand those that it takes rows from.
        </p>`
    : drawAbsent("Nothing was measured in this time.");
  return drawSection(
    "time",
    times.recent ? `Time of the ${sayLast(times.ms)}` : "Time since its start",
    content,
  );
}

/**
 * @param {Operator[]} operators
 * @param {Times} times
 * @param {Operator | undefined} chosen
 * @param {(operator: Operator) => void} choose
 */
function drawGraph(operators, times, chosen, choose) {
  const nodes = operators.filter((one) => one.lir !== undefined);
  if (!nodes.length) return nothing;
  const shares = new Map(sharesOf(operators, times.of).map((one) => [one.operator.id, one.share]));
  const most = Math.max(0, ...shares.values());
  /** @param {Operator} one */
  const describe = (one) => {
    const share = shares.get(one.id);
    const left = share === undefined ? "" : percent(share);
    const right = one.kept
      ? one.kept.size == null
        ? `${countOf(one.kept.records, "row")} kept`
        : `keeps ${size(one.kept.size)}`
      : "";
    return {
      label: one.name,
      detail: one.detail.replaceAll(/\s+/g, " "),
      left,
      right,
      heat: share && most ? share / most : 0,
    };
  };
  const byId = new Map(nodes.map((one) => [one.id, one]));
  /**
   * @param {number} from
   */
  const rowsOf = (from) => {
    const sender = byId.get(from);
    const rate = sender && times.rows(sender);
    if (rate !== undefined) return `${sayRate(rate)}\u00a0rows/s`;
    if (!sender?.rowsOut) return "";
    const { rows, counted, observed } = sender.rowsOut;
    return counted < observed ? "not all counted" : countOf(rows, "row");
  };
  const content =
    nodes.length > NODES_MAX
      ? drawAbsent(`It has ${countOf(nodes.length, "operator")}, too many for a picture: see the table.`)
      : drawOperatorGraph(nodes, describe, rowsOf, chosen?.id, choose);
  return drawSection("operators", "Operators", content);
}
