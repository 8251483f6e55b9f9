/**
 * Makes addresses of the screen for SQL with a statement in it, which is not run by itself.
 *
 * @typedef {import("../main.js").Page} Page
 */

/**
 * @param {Page} page
 * @param {string} sql
 */
export function sqlAddress(page, sql) {
  // Behind `#`: what is asked is neither sent nor logged.
  return `${page.address("sql")}#${new URLSearchParams({ sql })}`;
}

/** @param {string} name  As an identifier of SQL. */
export function quoted(name) {
  return `\`${name.replaceAll("`", "``")}\``;
}
