/**
 * The freshness of an object: its lag over time, and how often it was how large.
 *
 * @typedef {import("../../main.js").Page} Page
 * @typedef {import("../../store.js").Row} Row
 */
import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { drawChart, SPANS } from "../chart.js";
import { moment, percent, span, visible } from "../../words.js";
import { drawAbsent, drawKeptChoice, drawFacts, drawSection, theRow } from "./bits.js";

const MINUTE = 60_000;

/** Of fewer minutes there are no shares to speak of: one of them alone is a chart without a line. */
const MINUTES_MIN = 5;

/** Ranges of time by their name in the address, in minutes; the first without a choice. */
const RANGES = /** @type {const} */ ([
  ["1h", "1\u00a0h", 60],
  ["6h", "6\u00a0h", 360],
  ["24h", "24\u00a0h", 1440],
]);

/** @param {Page} page */
export function drawFreshness(page) {
  const aside = drawKeptChoice(
    page,
    "Time shown",
    "range",
    RANGES.map(([value, title]) => [value, title]),
  );
  return drawSection("freshness", "Freshness", html`${drawCourse(page)} ${drawBehind(page)}`, {
    aside,
    wide: true,
  });
}

/** @param {Page} page */
function drawCourse(page) {
  const chosen = page.query.get("range") ?? RANGES[0][0];
  const [, title, minutes] = RANGES.find(([value]) => value === chosen) ?? RANGES[0];
  const now = page.asOf ?? (page.server.at || Date.now());
  const from = now - minutes * MINUTE;
  const { at, lags } = courseOf(page.rows("lags") ?? [], theRow(page, "lag")?.lag, from, now);
  const changes = (page.rows("verdictHistory") ?? []).map((row) => ({
    at: moment(row.occurred_at) ?? 0,
    label: row.verdict,
  }));
  return drawChart(page, "lag", {
    title: `Lag behind the clock, last ${title}`,
    at,
    lines: [{ label: "Lag", colour: "--accent", values: lags, filled: true }],
    say: span,
    grid: SPANS,
    shown: [from, now],
    least: 2_000,
    marks: changes,
    empty: "No lag has been noted in this time: it is noted once a minute.",
  });
}

/**
 * Lag by minute, and the present one. A minute that is missing is a gap, and no line across it.
 * @param {Row[]} rows
 * @param {number | null | undefined} live
 * @param {number} from
 * @param {number} now
 */
function courseOf(rows, live, from, now) {
  const noted = rows
    .map(({ occurred_at, lag }) => ({
      at: moment(occurred_at) ?? 0,
      lag: /** @type {number} */ (lag),
    }))
    .filter(({ at }) => at >= from && at <= now)
    .sort((one, other) => one.at - other.at);
  if (live != null) noted.push({ at: now, lag: live });
  /** @type {number[]} */
  const at = [];
  /** @type {(number | null)[]} */
  const lags = [];
  for (const one of noted) {
    const before = at.at(-1);
    if (before !== undefined && one.at - before > 2.5 * MINUTE) {
      at.push(before + MINUTE);
      lags.push(null);
    }
    at.push(one.at);
    lags.push(one.lag);
  }
  return { at, lags };
}

/** @param {Page} page  How far it is behind what it reads, and who holds it up. */
function drawBehind(page) {
  const behind = theRow(page, "behind");
  if (!behind) return nothing;
  /** @param {string | null} id */
  const link = (id) => id && html`<a class="name" href=${page.address("object", id)}>${visible(id, 80)}</a>`;
  return drawFacts([
    ["Behind its slowest input", behind.local_lag == null ? null : span(behind.local_lag)],
    ["Its slowest input", link(behind.slowest_local_input_id)],
    ["Behind the slowest source", behind.global_lag == null ? null : span(behind.global_lag)],
    ["The slowest source", link(behind.slowest_global_input_id)],
  ]);
}

/** @param {Page} page */
export function drawDistribution(page) {
  const missing = page.error("percentiles");
  if (missing?.code === "UNKNOWN_RELATION") return nothing;
  const percentiles = [...(page.rows("percentiles") ?? [])].sort((a, b) => a.minutes - b.minutes);
  const content = percentiles.length
    ? html`${drawExceedance(page)}
        <table class="numbers">
          <thead>
            <tr>
              <th scope="col">Within</th>
              <th scope="col">Half below</th>
              <th scope="col">90 %</th>
              <th scope="col">99 %</th>
              <th scope="col">Most</th>
            </tr>
          </thead>
          <tbody>
            ${percentiles.map(
              (row) =>
                html`<tr>
                  <th scope="row">${span(row.minutes * MINUTE)}</th>
                  ${[row.p50, row.p90, row.p99, row.max].map((lag) => html`<td>${span(lag)}</td>`)}
                </tr>`,
            )}
          </tbody>
        </table>`
    : drawAbsent(
        missing ? visible(missing.message, 400) : "No lag has been noted yet: it is noted once a minute.",
      );
  return drawSection("distribution", "How often it is how late", content);
}

/** @param {Page} page  The share of minutes whose lag was above each value. */
function drawExceedance(page) {
  const rows = [...(page.rows("distribution") ?? [])].sort((a, b) => a.lag - b.lag);
  const late = rows.filter(({ lag }) => lag > 0);
  // Of one lag there is no line, only a point that says nothing.
  const isTooShort =
    (page.rows("lags")?.length ?? MINUTES_MIN) < MINUTES_MIN || late.length === 1;
  const positive = isTooShort ? [] : late;
  return drawChart(page, "distribution", {
    title: "Share of minutes with more lag",
    at: positive.map(({ lag }) => lag),
    lines: [
      {
        label: "Share of minutes with more",
        colour: "--accent",
        values: positive.map(({ share }) => share),
        filled: true,
      },
    ],
    say: percent,
    sayAt: span,
    kind: "steps",
    logarithmic: true,
    most: 1,
    empty: "There are too few minutes for a distribution.",
  });
}
