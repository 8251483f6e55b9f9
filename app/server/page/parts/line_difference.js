/**
 * Compares two texts line by line: what stays, what goes, what comes, in the order of the texts.
 *
 * The longest common subsequence, by the textbook's table: definitions are short, and what is equal
 * at both ends is left out of it first.
 *
 * @typedef {{ kind: "same" | "gone" | "come", text: string }} Line
 */

/** Cells of the table; above it everything between the equal ends is shown as replaced. */
const CELLS_MAX = 4_000_000;

/**
 * @param {string} before
 * @param {string} after
 * @returns {Line[]}
 */
export function lineDifference(before, after) {
  const old = before.split("\n");
  const young = after.split("\n");
  let head = 0;
  while (head < old.length && head < young.length && old[head] === young[head]) head++;
  let tail = 0;
  while (
    tail < Math.min(old.length, young.length) - head &&
    old[old.length - 1 - tail] === young[young.length - 1 - tail]
  )
    tail++;
  const middle = between(
    old.slice(head, old.length - tail),
    young.slice(head, young.length - tail),
  );
  return [
    ...marked("same", old.slice(0, head)),
    ...middle,
    ...marked("same", old.slice(old.length - tail)),
  ];
}

/**
 * @param {string[]} old
 * @param {string[]} young
 * @returns {Line[]}
 */
function between(old, young) {
  if (old.length * young.length > CELLS_MAX)
    return [...marked("gone", old), ...marked("come", young)];
  const wide = young.length + 1;
  // Length of the longest common subsequence of what follows the two places.
  const common = new Uint32Array((old.length + 1) * wide);
  for (let i = old.length - 1; i >= 0; i--)
    for (let j = young.length - 1; j >= 0; j--)
      common[i * wide + j] =
        old[i] === young[j]
          ? common[(i + 1) * wide + j + 1] + 1
          : Math.max(common[(i + 1) * wide + j], common[i * wide + j + 1]);
  /** @type {Line[]} */
  const lines = [];
  let i = 0;
  let j = 0;
  while (i < old.length && j < young.length) {
    if (old[i] === young[j]) {
      lines.push({ kind: "same", text: old[i++] });
      j++;
    } else if (common[(i + 1) * wide + j] >= common[i * wide + j + 1]) {
      lines.push({ kind: "gone", text: old[i++] });
    } else {
      lines.push({ kind: "come", text: young[j++] });
    }
  }
  return [...lines, ...marked("gone", old.slice(i)), ...marked("come", young.slice(j))];
}

/**
 * @param {Line["kind"]} kind
 * @param {string[]} texts
 * @returns {Line[]}
 */
function marked(kind, texts) {
  return texts.map((text) => ({ kind, text }));
}
