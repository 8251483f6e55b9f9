/**
 * Holds the rows of the relations that the page follows; all that is drawn comes from here.
 *
 * Rows are a multiset, as in the application: equal rows are counted. A relation as of an earlier time
 * is asked for once, and does not change; if it has failed, again when that may have ended.
 *
 * @typedef {Record<string, any>} Row
 * @typedef {import("./server.js").Selection} Selection
 * @typedef {import("./server.js").Server} Server
 * @typedef {import("./server.js").ServerError} ServerError
 *
 * @typedef {object} Held
 * @property {string} id  Of its subscription; "" if it is of an earlier time.
 * @property {Selection} selection
 * @property {string[]} columns
 * @property {Map<string, {row: Row, count: number}>} counted  By the row's text.
 * @property {Row[] | undefined} rows  As an array; made when somebody looks.
 * @property {ServerError | undefined} error
 * @property {boolean} isAsking  It is of an earlier time, and was asked for without an answer so far.
 * @property {number} change  That of the server when it was asked for, or refused: see
 *   `Server.changes`.
 * @property {number} endedAt  When the last answer, or the failure, came; in ms since the epoch.
 */

/** After so long an application that did not answer, or could not, is asked again. */
const ASK_AGAIN_MS = 5_000;

export class Store {
  /**
   * @param {Server} server
   * @param {() => void} changed  Called after rows have changed, as often as they do.
   */
  constructor(server, changed) {
    this._server = server;
    this._changed = changed;
    /** @type {Map<string, Held>} */
    this._held = new Map();
    this._ids = 0;
  }

  /**
   * Follow these selections, and no others. What was followed before and still is keeps its rows.
   * @param {Selection[]} selections
   * @param {number | undefined} asOf  In ms since the epoch; undefined for the present.
   */
  follow(selections, asOf) {
    const wanted = new Map(selections.map((one) => [keyOf(one, asOf), one]));
    for (const [key, held] of this._held) {
      if (wanted.has(key)) continue;
      this._held.delete(key);
      if (held.id) this._server.unfollow(held.id);
    }
    for (const [key, selection] of wanted) {
      const held = this._held.get(key);
      if (!held) this._held.set(key, this._begin(selection, asOf));
      else if (asOf !== undefined) {
        if (this._mayWorkNow(held)) this._ask(held, asOf);
      } else if (held.error && held.change !== this._server.changes) {
        // Another version of the application may have the relation, or the column.
        const { error } = held;
        this._held.set(key, Object.assign(this._begin(selection, asOf), { error }));
      }
    }
  }

  /**
   * The rows of a selection that is followed; undefined until the first ones are here.
   * @param {Selection} selection
   * @param {number | undefined} asOf
   * @returns {Row[] | undefined}
   */
  rows(selection, asOf) {
    const held = this._held.get(keyOf(selection, asOf));
    if (!held) return undefined;
    if (!held.rows && held.columns.length) held.rows = rowsOf(held);
    return held.rows;
  }

  /**
   * @param {Selection} selection
   * @param {number | undefined} asOf
   * @returns {ServerError | undefined}
   */
  error(selection, asOf) {
    return this._held.get(keyOf(selection, asOf))?.error;
  }

  /**
   * @param {Selection} selection
   * @param {number | undefined} asOf
   * @returns {Held}
   */
  _begin(selection, asOf) {
    const id = asOf === undefined ? String(++this._ids) : "";
    /** @type {Held} */
    const held = {
      id,
      selection,
      columns: [],
      counted: new Map(),
      rows: undefined,
      error: undefined,
      isAsking: false,
      change: 0,
      endedAt: 0,
    };
    if (asOf !== undefined) {
      this._ask(held, asOf);
      return held;
    }
    /** @type {string[]} */
    let columns = [];
    this._server.follow(id, selection, {
      begun: (names) => (columns = names),
      changed: (change) => {
        held.columns = columns;
        held.error = undefined;
        apply(held, change);
        this._changed();
      },
      refused: (error) => {
        // It has no rows of now, and those of before are not.
        held.columns = [];
        held.counted.clear();
        held.rows = undefined;
        held.error = error;
        held.change = this._server.changes;
        this._changed();
      },
    });
    return held;
  }

  /**
   * Whether it has failed, and another answer may come since: there is another token or connection,
   * or some time has passed. Nothing is followed at an earlier time that would tell of it.
   * @param {Held} held
   */
  _mayWorkNow({ error, isAsking, change, endedAt }) {
    if (!error || isAsking) return false;
    const mayPass = error.status === 0 || error.status >= 500;
    const isDue = mayPass && Date.now() - endedAt > ASK_AGAIN_MS;
    return isDue || change !== this._server.changes;
  }

  /**
   * @param {Held} held
   * @param {number} asOf
   */
  async _ask(held, asOf) {
    held.isAsking = true;
    held.change = this._server.changes;
    const { relation, where = {} } = held.selection;
    const query = new URLSearchParams({ as_of: String(asOf) });
    if (Object.keys(where).length) query.set("where", JSON.stringify(where));
    try {
      const path = `/api/v1/relations/${encodeURIComponent(relation)}?${query}`;
      held.rows = (await this._server.get(path)).rows;
      held.error = undefined;
    } catch (error) {
      held.error = /** @type {ServerError} */ (error);
    }
    held.isAsking = false;
    held.endedAt = Date.now();
    this._changed();
  }
}

/**
 * Bring the held rows to a moment.
 * @param {Held} held
 * @param {import("./server.js").Change} change
 */
export function apply(held, { snapshot, added = [], removed = [] }) {
  if (snapshot) held.counted.clear();
  for (const values of snapshot ?? added) count(held, values, 1);
  for (const values of removed) count(held, values, -1);
  held.rows = undefined;
}

/**
 * The held rows, each as often as it is there.
 * @param {Pick<Held, "counted">} held
 */
export function rowsOf({ counted }) {
  return [...counted.values()].flatMap(({ row, count }) => Array(count).fill(row));
}

/**
 * @param {Held} held
 * @param {unknown[]} values
 * @param {number} diff
 */
function count(held, values, diff) {
  const text = JSON.stringify(values);
  const found = held.counted.get(text);
  if (found) {
    found.count += diff;
    if (found.count === 0) held.counted.delete(text);
  } else {
    const row = Object.fromEntries(held.columns.map((name, at) => [name, values[at]]));
    held.counted.set(text, { row, count: diff });
  }
}

/**
 * Text that is equal for equal selections; an id of the application's may be too short for it.
 * @param {Selection} selection
 * @param {number | undefined} asOf
 */
function keyOf({ relation, where = {} }, asOf) {
  const sorted = Object.entries(where).sort(([a], [b]) => (a < b ? -1 : 1));
  const text = sorted.length ? `${relation} ${JSON.stringify(sorted)}` : relation;
  return asOf === undefined ? text : `${text} @${asOf}`;
}
