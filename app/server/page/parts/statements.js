/**
 * Remembers the statements that were run in this browser, and nowhere else: the newest first.
 *
 * @typedef {{ sql: string, at: number }} Statement  `at` in ms since the epoch.
 */

const KEY = "shardline-statements";
const MAX = 50;

/** Longer ones are not kept: a browser gives one origin a few megabytes for everything. */
const LONGEST = 20_000;

/** What was read last: the list is drawn with every change of a subscription. */
let last = { text: "", list: /** @type {Statement[]} */ ([]) };

/** @returns {Statement[]} */
export function statements() {
  try {
    const text = localStorage.getItem(KEY) ?? "[]";
    if (text !== last.text) last = { text, list: read(text) };
    return last.list;
  } catch {
    return [];
  }
}

/**
 * @param {string} text
 * @returns {Statement[]}
 */
function read(text) {
  // Anything of this origin may have written there, an earlier version of the page for one.
  const kept = JSON.parse(text);
  return kept.filter((/** @type {any} */ one) => typeof one?.sql === "string" && one.at > 0);
}

/** @param {string} sql */
export function rememberStatement(sql) {
  if (sql.length > LONGEST) return;
  const others = statements().filter((one) => one.sql !== sql);
  keep([{ sql, at: Date.now() }, ...others].slice(0, MAX));
}

export function forgetStatements() {
  try {
    localStorage.removeItem(KEY);
  } catch {
    // A browser that keeps nothing has nothing to forget.
  }
}

/** @param {Statement[]} list */
function keep(list) {
  try {
    localStorage.setItem(KEY, JSON.stringify(list));
  } catch {
    // Full, or forbidden: the statement has run all the same.
  }
}
