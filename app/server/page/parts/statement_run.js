/**
 * Runs one statement: a query that is answered once, or a subscription that goes on until it is ended.
 *
 * @typedef {import("../main.js").Page} Page
 *
 * @typedef {object} Change  An update of what is followed.
 * @property {number} id  The order in which it has come.
 * @property {number} time  In ms since the epoch.
 * @property {number} diff
 * @property {unknown[]} values
 *
 * @typedef {{ values: unknown[], copies: number }} Copies
 */
import { ServerError } from "../server.js";

/** Newest changes that are kept to be looked at. */
const CHANGES_MAX = 1_000;

/** Rows of what is followed that are kept; above it only changes are shown. */
const CONTENTS_MAX = 10_000;

const COMMENT_OR_BLANK = /^(?:\s+|--[^\n]*(?:\n|$)|\/\*[^]*?\*\/)+/;

export class StatementRun {
  /**
   * @param {Page} page
   * @param {string} sql
   */
  constructor(page, sql) {
    this._page = page;
    this.sql = sql;
    /** With which it is asked: another one may be answered where this one was refused. */
    this.token = page.server.token;
    this.isSubscription = /^subscribe\b/i.test(sql.replace(COMMENT_OR_BLANK, ""));
    this.began = performance.now();
    /**
     * How long it took, in ms; undefined while it runs.
     * @type {number | undefined}
     */
    this.took = undefined;
    /** Whether it was ended on request. */
    this.isCancelled = false;
    /** @type {ServerError | undefined} */
    this.error = undefined;
    /** @type {{ name: string, type: string }[]} */
    this.columns = [];
    /**
     * Of a query.
     * @type {unknown[][]}
     */
    this.rows = [];
    /**
     * Of a subscription: the newest first.
     * @type {Change[]}
     */
    this.changes = [];
    /** Contents of what is followed, by row; undefined if they are too many, or were left out. */
    this.contents = /without\s+snapshot/i.test(sql)
      ? undefined
      : /** @type {Map<string, Copies>} */ (new Map());
    /** All changes so far. */
    this.seen = 0;
    /** Everything before this time has come, in ms since the epoch; 0 before the first. */
    this.upper = 0;
    /** Why a subscription has ended; "" while it goes on. */
    this.end = "";
    this._abort = new AbortController();
  }

  get isRunning() {
    return this.took === undefined;
  }

  /** End it. The application ends the query when its client is gone. */
  cancel() {
    if (!this.isRunning) return;
    this.isCancelled = true;
    this._abort.abort();
  }

  async go() {
    try {
      if (this.isSubscription) await this._follow();
      else await this._ask();
    } catch (error) {
      if (error instanceof ServerError) this.error = error;
      else if (!this._abort.signal.aborted) throw error;
    } finally {
      this.took = performance.now() - this.began;
      this._page.redraw();
    }
  }

  async _ask() {
    const { server } = this._page;
    const answer = await server.post("/api/v1/sql", { query: this.sql }, this._abort.signal);
    this.columns = answer.columns;
    this.rows = answer.rows;
  }

  async _follow() {
    const { server } = this._page;
    const signal = this._abort.signal;
    for await (const batch of server.lines("/api/v1/subscribe", { query: this.sql }, signal)) {
      if (batch.error) this.end = `It has ended by an error: ${batch.error}`;
      else if ("dropped_at" in batch) this.end = "The application has ended it.";
      else this._take(batch);
      this._page.redraw();
    }
    this.end ||= "It has ended: nothing more can come.";
  }

  /** @param {{ upper: number | null, updates: Record<string, unknown>[] }} batch */
  _take({ upper, updates }) {
    if (upper !== null) this.upper = upper;
    if (updates.length && !this.columns.length) this.columns = columnsOf(updates);
    /** @type {Change[]} */
    const come = [];
    for (const update of updates) {
      const values = this.columns.map(({ name }) => update[name]);
      const diff = Number(update._diff);
      this.seen++;
      this._count(values, diff);
      come.push({ id: this.seen, time: Number(update._ts), diff, values });
    }
    if (come.length) this.changes = [...come.reverse(), ...this.changes].slice(0, CHANGES_MAX);
  }

  /**
   * @param {unknown[]} values
   * @param {number} diff
   */
  _count(values, diff) {
    if (!this.contents) return;
    const key = JSON.stringify(values);
    const copies = (this.contents.get(key)?.copies ?? 0) + diff;
    if (copies) this.contents.set(key, { values, copies });
    else this.contents.delete(key);
    if (this.contents.size > CONTENTS_MAX) this.contents = undefined;
  }
}

/**
 * Columns by the names of the first updates; JSON has no types, so numbers are known by their looks.
 * @param {Record<string, unknown>[]} updates
 */
function columnsOf(updates) {
  const names = Object.keys(updates[0]).filter((name) => name !== "_ts" && name !== "_diff");
  return names.map((name) => {
    const values = updates.map((update) => update[name]).filter((value) => value !== null);
    const isNumber = values.length > 0 && values.every((value) => typeof value === "number");
    return { name, type: isNumber ? "double" : "string" };
  });
}
