/**
 * The steps of an object: where their time goes, by phase of a micro-batch; and how many rows pass.
 *
 * @typedef {import("../../main.js").Page} Page
 * @typedef {import("../../store.js").Row} Row
 */
import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { drawChart, SPANS } from "../chart.js";
import { ratesOf, sayLast, sayRate } from "../rates.js";
import { ago } from "../time.js";
import { count, countOf, percent, size, span } from "../../words.js";
import { drawAbsent, drawBar, drawFacts, drawSection, theRow } from "./bits.js";

/** Spark's phases of a micro-batch, in their order, in words. */
export const PHASES = /** @type {Record<string, string>} */ ({
  latestOffset: "asking what is new",
  getBatch: "planning the read",
  queryPlanning: "planning the query",
  walCommit: "noting the offsets",
  addBatch: "computing and writing",
  commitOffsets: "noting the commit",
});

/** The order of colours: the phase that nearly all of the time goes to has the accent. */
const COLOURS = /** @type {Record<string, string>} */ ({
  addBatch: "--series-1",
  latestOffset: "--series-2",
  queryPlanning: "--series-3",
  getBatch: "--series-4",
  walCommit: "--series-5",
  commitOffsets: "--series-6",
});

/** @param {Page} page */
export function drawSteps(page) {
  const missing = page.error("steps");
  const rows = page.rows("steps") ?? [];
  const content = missing ? drawSums(page) : drawMicroBatches(page, rows);
  return drawSection("steps", "Steps by phase", content, {
    aside: html`<a href=${page.address("dataflow", page.name)}>Operators</a>`,
  });
}

/**
 * @param {Page} page
 * @param {Row[]} rows
 */
function drawMicroBatches(page, rows) {
  const batches = [...new Set(rows.map((row) => row.batch))].sort((a, b) => a - b);
  const first = new Map(rows.map((row) => [row.batch, row]));
  const phases = Object.keys(PHASES).filter((phase) => rows.some((row) => row.phase === phase));
  const took = new Map(rows.map((row) => [`${row.batch} ${row.phase}`, row.elapsed]));
  const sums = phases.map((phase) =>
    batches.reduce((sum, batch) => sum + (took.get(`${batch} ${phase}`) ?? 0), 0),
  );
  const last = first.get(batches.at(-1));
  const chart = drawChart(page, "steps", {
    title: `Time of the last ${countOf(batches.length, "micro-batch", "micro-batches")}, by phase`,
    at: batches,
    lines: [...phases]
      .sort((a, b) => order(a) - order(b))
      .map((phase) => ({
        label: PHASES[phase],
        colour: COLOURS[phase],
        values: batches.map((batch) => took.get(`${batch} ${phase}`) ?? null),
      })),
    say: span,
    sayAt: (batch) => `no.\u00a0${Math.round(batch).toLocaleString()}`,
    grid: SPANS,
    shown: batches.length
      ? [batches[0] - 1, /** @type {number} */ (batches.at(-1)) + 1]
      : undefined,
    least: 10,
    kind: "stack",
    empty: "It has done no micro-batch since it was started.",
  });
  return html`${chart} ${drawPhases(phases, sums)}
  ${
    last
      ? drawFacts([
          ["Last micro-batch", `no.\u00a0${last.batch.toLocaleString()}, ${span(last.took)}`],
          ["Begun", ago(last.started_at, page.now)],
        ])
      : nothing
  }`;
}

/** @param {string} phase  That which takes the most stands lowest, where it is compared best. */
function order(phase) {
  return Object.keys(COLOURS).indexOf(phase);
}

/** @param {Page} page  Without single micro-batches: the sums since the start. */
function drawSums(page) {
  const names = new Map((page.rows("operators") ?? []).map((row) => [row.id, row.name]));
  const sums = new Map(
    (page.rows("elapsed") ?? [])
      .filter((row) => PHASES[names.get(row.id) ?? ""])
      .map((row) => [names.get(row.id), row.elapsed_ns / 1e6]),
  );
  const phases = Object.keys(PHASES).filter((phase) => sums.has(phase));
  if (!phases.length) return drawAbsent("It has done no micro-batch since it was started.");
  return drawPhases(
    phases,
    phases.map((phase) => sums.get(phase) ?? 0),
  );
}

/**
 * @param {string[]} phases
 * @param {number[]} sums
 */
function drawPhases(phases, sums) {
  const total = sums.reduce((sum, one) => sum + one, 0);
  if (!total) return nothing;
  return html`<table class="numbers shares">
    <thead>
      <tr>
        <th scope="col">Phase</th>
        <th scope="col">Time</th>
        <th scope="col">Share</th>
        <th scope="col"><span class="sr">Share as a bar</span></th>
      </tr>
    </thead>
    <tbody>
      ${phases.map(
        (phase, at) =>
          html`<tr>
            <th scope="row">${PHASES[phase]} <code>${phase}</code></th>
            <td>${span(sums[at])}</td>
            <td>${percent(sums[at] / total)}</td>
            ${drawBar(sums[at] / total, COLOURS[phase])}
          </tr>`,
      )}
    </tbody>
  </table>`;
}

/**
 * What is known of the rows that pass, by the object's type: the main counter is drawn.
 * @type {Record<string, { relation: string, rows: [string, string][], drawn: string }>}
 */
const COUNTERS = {
  source: {
    relation: "sourceStatistics",
    drawn: "messages_received",
    rows: [
      ["messages_received", "Rows from outside"],
      ["bytes_received", "Bytes from outside"],
      ["updates_staged", "Updates written"],
      ["updates_committed", "Updates that can be read"],
      ["rows_skipped", "Rows left out"],
    ],
  },
  sink: {
    relation: "sinkStatistics",
    drawn: "messages_committed",
    rows: [
      ["messages_staged", "Messages written"],
      ["messages_committed", "Messages committed outside"],
      ["bytes_staged", "Bytes written"],
      ["bytes_committed", "Bytes committed outside"],
    ],
  },
};

/** Counters as they are now, by name: statistics of sources and sinks, and what others measure. */
function countersOf(/** @type {Page} */ page, /** @type {string} */ type) {
  const known = COUNTERS[type];
  const row = known && theRow(page, known.relation);
  if (known) return known.rows.map(([name, title]) => ({ name, title, value: row?.[name] }));
  return (page.rows("measurements") ?? [])
    .filter((one) => one.type === "counter")
    .map(({ name, value }) => ({ name, title: titleOf(name), value }));
}

/**
 * Note what the counters are at this moment: rates are differences.
 * @param {Page} page
 * @param {string} type
 */
export function noteCounters(page, type) {
  if (page.asOf !== undefined || !page.server.connected) return;
  const rates = ratesOf(page);
  for (const { name, value } of countersOf(page, type)) rates.note(name, value, page.server.at);
}

/**
 * @param {Page} page
 * @param {string} type
 */
export function drawThroughput(page, type) {
  const rates = ratesOf(page);
  const counters = countersOf(page, type).filter(({ value }) => value != null);
  const drawn =
    COUNTERS[type]?.drawn ?? (counters.some((c) => c.name === "updates_out") ? "updates_out" : "");
  const course = rates.course(drawn);
  const chart = drawn
    ? drawChart(page, "throughput", {
        title: "Rows per second, since this page was opened",
        at: course.map(({ at }) => at),
        lines: [
          {
            label: "Rows per second",
            colour: "--accent",
            values: course.map(({ rate }) => rate),
            filled: true,
          },
        ],
        say: (rate) => `${sayRate(rate)}/s`,
        shown: [page.server.at - 90_000, page.server.at],
        least: 4,
        empty: "Rates are told once two moments are known.",
      })
    : nothing;
  const table = counters.length
    ? html`<table class="numbers">
        <thead>
          <tr>
            <th scope="col">Counter</th>
            <th scope="col">Since its start</th>
            <th scope="col">Per second</th>
          </tr>
        </thead>
        <tbody>
          ${counters.map(({ name, title, value }) => {
            const say = name.startsWith("bytes_") ? size : count;
            const rate = rates.lately(name)?.perSecond;
            return html`<tr>
              <th scope="row">${title}</th>
              <td>${say(value)}</td>
              <td>${rate === undefined || say === count ? sayRate(rate) : say(rate)}</td>
            </tr>`;
          })}
        </tbody>
      </table>`
    : drawAbsent("It has counted nothing yet.");
  const known = rates.lately(counters[0]?.name ?? "");
  const content = html`${chart} ${table} ${drawGauges(page, type)}`;
  return drawSection("throughput", "Throughput", content, {
    aside: html`<span class="absent">${known ? sayLast(known.ms) : "rates follow"}</span>`,
  });
}

/**
 * What an object has and waits for, beside what has passed.
 * @param {Page} page
 * @param {string} type
 */
function drawGauges(page, type) {
  const source = type === "source" ? theRow(page, "sourceStatistics") : undefined;
  const gauges = (page.rows("measurements") ?? []).filter((one) => one.type === "gauge");
  const hydration = theRow(page, "hydrationTime")?.hydration_time;
  return drawFacts([
    ["Files that wait outside", source?.files_waiting == null ? null : count(source.files_waiting)],
    ["Bytes that wait outside", source?.bytes_waiting == null ? null : size(source.bytes_waiting)],
    ["Offset outside", source?.offset_known == null ? null : source.offset_known.toLocaleString()],
    [
      "Offset that can be read",
      source?.offset_committed == null ? null : source.offset_committed.toLocaleString(),
    ],
    [
      "Keys kept for upserts",
      source?.records_indexed == null ? null : count(source.records_indexed),
    ],
    ["Size of those keys", source?.bytes_indexed == null ? null : size(source.bytes_indexed)],
    ...gauges.map(
      ({ name, value }) => /** @type {[string, unknown]} */ ([titleOf(name), count(value)]),
    ),
    ["Caught up after its last start in", hydration == null ? null : span(hydration)],
  ]);
}

/** @param {string} name  Of a measurement. */
function titleOf(name) {
  const words = name.replaceAll("_", " ");
  return words[0].toUpperCase() + words.slice(1);
}
