/**
 * Makes the statement by which a subscription goes on behind what it has brought, so that nothing is
 * lost and nothing comes twice (docs/reading.md, "Going on after an interruption").
 *
 *     resumeStatement("SUBSCRIBE TO delays", 1763712000000, "s01")
 *       "SUBSCRIBE TO delays WITHOUT SNAPSHOT AS OF 1763711999999 OF SHARD 's01'"
 *
 * The statement has run, so its form is known: its object, and clauses in any order. Of these `UP TO`
 * stays; the others say where it began, which is behind it.
 */

/** A comment, a quoted name or text, a word or number, or any other character. */
const TOKEN =
  /--[^\n]*|\/\*[^]*?\*\/|`(?:[^`]|``)*`|'(?:[^'\\]|\\[^]|'')*'|"(?:[^"\\]|\\[^]|"")*"|[^\s'"`;/-]+|[^]/g;

const BLANK_OR_COMMENT = /^(?:\s|--|\/\*)/;

/**
 * @param {string} sql  A subscription that has brought changes.
 * @param {number | string} upper  Of its last batch: everything before it has come.
 * @param {string} shard  Of its last batch; "" if it has said none.
 */
export function resumeStatement(sql, upper, shard) {
  const tokens = (sql.match(TOKEN) ?? []).filter((one) => !BLANK_OR_COMMENT.test(one));
  const has = (/** @type {number} */ at, /** @type {string} */ word) =>
    tokens[at]?.toUpperCase() === word;
  const named = has(1, "TO") ? 3 : 2;
  const said = [...tokens.slice(0, named), "WITHOUT SNAPSHOT", `AS OF ${BigInt(upper) - 1n}`];
  const end = tokens.findIndex((_, at) => at >= named && has(at, "UP") && has(at + 1, "TO"));
  // A raw text is two tokens here, which must not be torn apart.
  if (end > 0)
    said.push(`UP TO ${tokens.slice(end + 2, end + (has(end + 2, "R") ? 4 : 3)).join("")}`);
  if (shard) said.push(`OF SHARD '${shard}'`);
  return said.join(" ");
}
