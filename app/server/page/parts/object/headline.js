/**
 * The headline of an object: how it is, why, since when, what to do, and whose fault it is; then
 * the figures of the moment.
 *
 * @typedef {import("../../main.js").Page} Page
 * @typedef {import("../../store.js").Row} Row
 * @typedef {import("../action.js").Offer} Offer
 */
import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { drawActions } from "../action.js";
import { kindSign } from "../object_link.js";
import { ratesOf, sayLast, sayRate } from "../rates.js";
import { ago, drawTime, lasting } from "../time.js";
import { drawVerdict } from "../verdict.js";
import { count, size, span, visible } from "../../words.js";
import { drawProse, theRow } from "./bits.js";

/**
 * @param {Page} page
 * @param {Row} verdict
 */
export function drawHeadline(page, verdict) {
  const name = verdict.object_id;
  const waits = theRow(page, "object")?.phase === "uncreated";
  return html`<header class="object-head is-${verdict.tone}">
    <div class="headline-name">
      <p class="headline-kind">
        ${kindSign(verdict.type)} <span aria-hidden="true">${visible(verdict.type)}</span>
      </p>
      <h1>${visible(name)}</h1>
    </div>
    <div class="headline-do">
      ${page.asOf === undefined ? drawActions(page, offers(page, verdict)) : nothing}
      <a class="button action" href=${page.address("dataflow", name)}>Dataflow</a>
    </div>
    <div class="headline-says">
      <p class="headline-verdict">
        ${drawVerdict(verdict)} ${waits ? html`<span class="tag">not created yet</span>` : nothing}
        ${drawSince(page, verdict)} ${drawReady(page, verdict)}
      </p>
      ${
        verdict.because
          ? html`<p class="why-so">${drawProse(page, capital(verdict.because))}</p>`
          : nothing
      }
      ${
        verdict.to_do
          ? html`<p class="remedy">
              <b>To do</b> <span>${drawProse(page, capital(verdict.to_do))}</span>
            </p>`
          : nothing
      }
      ${
        verdict.blame_id
          ? html`<p class="cause">
              <b>Cause</b>
              <a class="name" href=${page.address("object", verdict.blame_id)}
                >${visible(verdict.blame_id)}</a
              >
            </p>`
          : nothing
      }
    </div>
    ${waits ? nothing : drawFigures(page, verdict)}
  </header>`;
}

/**
 * @param {Page} page
 * @param {Row} verdict
 */
function drawSince(page, { since }) {
  if (!since) return nothing;
  return html`<span class="since">since ${drawTime(since)}, for ${lasting(since, page.now)}</span>`;
}

/**
 * @param {Page} page
 * @param {Row} verdict
 */
function drawReady(page, { ready_at: ready }) {
  if (!ready) return nothing;
  return html`<span class="since"
    >expected to be fresh ${ago(ready, page.now)}, at ${drawTime(ready)}</span
  >`;
}

/**
 * Figures of the moment; one that is not known yet keeps its place.
 * @param {Page} page
 * @param {Row} verdict
 */
function drawFigures(page, verdict) {
  const lag = theRow(page, "lag")?.lag;
  const behind = theRow(page, "behind");
  const rate = mainRate(page, verdict.type);
  /** @type {[string, unknown, unknown][]} */
  const figures = [
    [
      "Behind the clock",
      span(lag),
      behind?.local_lag == null ? "" : `${span(behind.local_lag)} by itself`,
    ],
    ["Rows", count(verdict.records), ""],
    ["Size", size(verdict.size), ""],
    [
      "Last change",
      ago(verdict.changed_at, page.now),
      verdict.changed_at ? drawTime(verdict.changed_at) : "",
    ],
    [
      "Throughput",
      rate === undefined ? "–" : `${sayRate(rate.perSecond)}\u00a0rows/s`,
      rate === undefined ? "" : sayLast(rate.ms),
    ],
    ...(verdict.retry_at
      ? [
          /** @type {[string, unknown, unknown]} */ ([
            "Next start",
            ago(verdict.retry_at, page.now),
            failures(verdict),
          ]),
        ]
      : []),
  ];
  // Of an earlier time most of them are not known, and will not be.
  const shown = page.asOf === undefined ? figures : figures.filter(([, value]) => value !== "–");
  return html`<dl class="figures">
    ${shown.map(
      ([title, value, more]) =>
        html`<div>
          <dt>${title}</dt>
          <dd>${value}</dd>
          <dd class="more">${more}</dd>
        </div>`,
    )}
  </dl>`;
}

/** @param {Row} verdict */
function failures({ failures }) {
  if (!failures) return "";
  return failures === 1 ? "failed once" : `failed ${failures}\u00a0times in a row`;
}

/**
 * Rows each second that come in through a source, leave a sink, or leave a view.
 * @param {Page} page
 * @param {string} type
 */
function mainRate(page, type) {
  const rates = ratesOf(page);
  if (type === "source") return rates.lately("messages_received");
  if (type === "sink") return rates.lately("messages_committed");
  return rates.lately("updates_out");
}

/**
 * What a person can do with an object; the verdict decides nothing but which of two opposites it
 * is.
 * @param {Page} page
 * @param {Row} verdict
 * @returns {Offer[]}
 */
function offers(page, { object_id: target, type, records }) {
  const phase = theRow(page, "object")?.phase;
  if (phase === undefined || phase === "uncreated") return [];
  const reads = { source: "It reads nothing from outside", sink: "It hands out nothing" }[
    /** @type {string} */ (type)
  ];
  const kept =
    records == null
      ? ""
      : " Its contents stay, and can be read as of the time that it has reached.";
  /** @type {Offer} */
  const pause = {
    action: "pause",
    target,
    title: "Pause",
    effect: `It stops, and stays stopped over restarts, until somebody resumes it. ${
      reads ?? "It takes in nothing"
    } meanwhile, and what reads it waits.${kept}`,
    outcome: (result) =>
      result.changed === false ? "It was paused already." : "It is being paused.",
  };
  /** @type {Offer} */
  const resume = {
    action: "resume",
    target,
    title: "Resume",
    effect: "It goes on where it stopped: nothing is lost, and it has to catch up.",
    outcome: (result) => (result.changed === false ? "It was not paused." : "It goes on."),
  };
  /** @type {Offer} */
  const restart = {
    action: "restart",
    target,
    title: "Restart",
    effect:
      "Its query is stopped and started again, at once, without waiting for a retry. It goes on " +
      "where it stopped: nothing is lost.",
    outcome: () => "It is being restarted.",
  };
  return phase === "paused" ? [resume] : [pause, restart];
}

/** @param {string} text */
function capital(text) {
  return /^[a-z]/.test(text) ? text[0].toUpperCase() + text.slice(1) : text;
}
