/**
 * Runs one statement: a query that is answered once, or a subscription that goes on until it is ended,
 * and again from where it was if it has broken off.
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
import { resumeStatement } from "./resume_statement.js";

/** Newest changes that are kept to be looked at. */
const CHANGES_MAX = 1_000;

/** Rows of what is followed that are kept; above it only changes are shown. */
const CONTENTS_MAX = 10_000;

/** Code of the answer that what would come next is not kept any more, or is of another object. */
const GONE = "HISTORY_GONE";

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
    /**
     * Everything before this time has come, in ms since the epoch; 0 before the first.
     * @type {number | string}  Digits, if a number cannot hold it.
     */
    this.upper = 0;
    /** Id of the shard whose changes have come. */
    this.shard = "";
    /** Whether a batch has come since it was begun, or has gone on. */
    this.isLive = false;
    /** Whether the last batch that there can be has come. */
    this.isComplete = false;
    /** Why a subscription has ended; "" while it goes on. */
    this.end = "";
    this._abort = new AbortController();
  }

  get isRunning() {
    return this.took === undefined;
  }

  /**
   * Whether it has ended before its end, and can go on from where it was. Without a batch there is
   * nothing to go on from: to run it again is the same.
   */
  get canGoOn() {
    if (!this.isSubscription || this.isRunning || this.isComplete || !this.upper) return false;
    return this.error?.code !== GONE && !this.end.includes(GONE);
  }

  /** Go on from where it was: what has been brought stays, and only what has happened since comes. */
  goOn() {
    if (!this.canGoOn) return;
    this.token = this._page.server.token;
    this.began = performance.now();
    this.took = undefined;
    this.isLive = false;
    this.isCancelled = false;
    this.error = undefined;
    this.end = "";
    this._abort = new AbortController();
    this._page.redraw();
    this.go();
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
    const query = this.upper ? resumeStatement(this.sql, this.upper, this.shard) : this.sql;
    for await (const batch of server.lines("/api/v1/subscribe", { query }, signal)) {
      if (batch.error) this.end = `It has ended by an error: ${batch.error}`;
      else if ("dropped_at" in batch) this.end = "The application has ended it.";
      else this._take(batch);
      this._page.redraw();
    }
    if (this.isComplete) this.end ||= "It has ended: nothing more can come.";
    else if (!this.end) throw new ServerError("CUT_OFF", "The connection has ended.", "Go on.");
  }

  /**
   * @param {{ upper: number | string | null, shard?: string,
   *   updates: Record<string, unknown>[] }} batch
   */
  _take({ upper, shard, updates }) {
    if (updates.length) this._addColumns(updates);
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
    // Last: it goes on behind what has been taken, and a batch is taken wholly or not at all.
    this.isLive = true;
    this.shard = shard ?? this.shard;
    if (upper === null) this.isComplete = true;
    else this.upper = upper;
  }

  /**
   * Take columns that are new: of the first updates, or of an object that has more of them since it
   * has gone on. Rows of before have NULL there, as the application has it.
   * @param {Record<string, unknown>[]} updates
   */
  _addColumns(updates) {
    const known = new Set(this.columns.map(({ name }) => name));
    const added = columnsOf(updates).filter(({ name }) => !known.has(name));
    if (!added.length) return;
    this.columns = [...this.columns, ...added];
    const nulls = added.map(() => null);
    const kept = [...(this.contents?.values() ?? [])].map(({ values, copies }) => {
      const wide = [...values, ...nulls];
      return /** @type {[string, Copies]} */ ([JSON.stringify(wide), { values: wide, copies }]);
    });
    if (this.contents) this.contents = new Map(kept);
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
