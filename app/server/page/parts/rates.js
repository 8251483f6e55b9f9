/**
 * Keeps what counters had in the last minute and a half, so that a rate can be told: relations have
 * sums since the start.
 *
 *     const rates = ratesOf(page);
 *     rates.note("rows", 1200, page.server.at);
 *     rates.lately("rows")?.perSecond      undefined until ten seconds are known
 */

import { count, span } from "../words.js";

/**
 * @typedef {object} Sample
 * @property {number} at
 * @property {number} value
 * @property {number} missed  How often the counter could not be counted up to then.
 */

const KEPT_MS = 90_000;
export const WINDOW_MS = 60_000;
const SMOOTH_MS = 5_000;

/** What is known of less says nothing of a minute: a micro-batch counts all of its rows at once. */
const ENOUGH_MS = 10_000;

/** Moments come each second: after so long the page was hidden, or had no connection. */
const GAP_MS = 10_000;

export class Rates {
  constructor() {
    /** @type {Map<string, Sample[]>} */
    this._samples = new Map();
  }

  /**
   * Note a counter. What was before is forgotten if it has become smaller, since it has begun anew,
   * after a gap, over which a rate would be none of now, and if the clock was set back.
   * @param {string} key
   * @param {number | null | undefined} value
   * @param {number} at  Time of the moment in which it had this value, in ms since the epoch.
   * @param {number} missed  How often something has happened that was not counted.
   */
  note(key, value, at, missed = 0) {
    if (value == null || !at) return;
    const samples = this._samples.get(key) ?? [];
    const last = samples.at(-1);
    if (last && last.at === at) return;
    if (last && (value < last.value || at < last.at || at - last.at > GAP_MS)) samples.length = 0;
    samples.push({ at, value, missed });
    // The last one before the window stays: the difference is to it.
    while (samples.length > 2 && samples[1].at < at - KEPT_MS) samples.shift();
    this._samples.set(key, samples);
  }

  /**
   * How much a counter has grown within the last minute, and within how many ms; undefined until
   * two moments are known, and where not all of it was counted: a counter that stands still for
   * that is no rate of 0.
   * @param {string} key
   * @param {number} windowMs  Another time than a minute.
   * @returns {{ grown: number, ms: number } | undefined}
   */
  growth(key, windowMs = WINDOW_MS) {
    const samples = this._samples.get(key) ?? [];
    const last = samples.at(-1);
    if (!last || samples.length < 2) return undefined;
    const before = samples.filter((one) => one.at <= last.at - windowMs);
    const first = before.at(-1) ?? samples[0];
    if (last.missed > first.missed) return undefined;
    return { grown: last.value - first.value, ms: last.at - first.at };
  }

  /**
   * Growth within the last minute, or what is known of it; undefined until that is ten seconds.
   * @param {string} key
   * @param {number} [windowMs]  Another time than a minute.
   * @returns {{ grown: number, ms: number, perSecond: number } | undefined}
   */
  lately(key, windowMs) {
    const growth = this.growth(key, windowMs);
    if (!growth || growth.ms < ENOUGH_MS) return undefined;
    return { ...growth, perSecond: (growth.grown / growth.ms) * 1_000 };
  }

  /**
   * Growth for each second, at each moment, over a few seconds: a micro-batch counts all of its
   * rows at once, and from one moment to the next there may be none.
   * @param {string} key
   * @returns {{ at: number, rate: number }[]}
   */
  course(key) {
    const samples = this._samples.get(key) ?? [];
    return samples.slice(1).map(({ at, value }, place) => {
      const before =
        samples
          .slice(0, place + 1)
          .filter((one) => one.at <= at - SMOOTH_MS)
          .at(-1) ?? samples[0];
      return { at, rate: ((value - before.value) / (at - before.at)) * 1_000 };
    });
  }
}

/** @param {number | undefined} rate  For each second; "–" if it is not known. */
export function sayRate(rate) {
  return rate === undefined
    ? "–"
    : count(rate < 100 ? Math.round(rate * 10) / 10 : Math.round(rate));
}

/** @param {number} ms  The time that a growth is of, in words: "last 40 s", "last minute". */
export function sayLast(ms) {
  return `last ${ms < WINDOW_MS ? span(ms) : "minute"}`;
}

/** Nothing is noted of an earlier moment. */
const NONE = new Rates();

/**
 * Those of the screen that is shown; none while an earlier moment is looked at.
 * @param {import("../main.js").Page} page
 * @returns {Rates}
 */
export function ratesOf(page) {
  return page.asOf === undefined ? (page.local.rates ??= new Rates()) : NONE;
}
