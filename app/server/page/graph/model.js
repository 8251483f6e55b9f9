/**
 * Makes the graph that is drawn of the rows that are known: which nodes, which edges, what is folded.
 *
 * More than `SHOWN_MAX` objects are folded into groups of one type: by the first word of their names,
 * by which people tell the parts of a large project apart (there are no schemas), or by the strategy
 * of views. What a person looks for is never inside of a group: what was chosen with its path and
 * inputs, what needs a person by its own fault, and what is in a group that was opened. A group that
 * is opened shows some of its members, those first that a person looks for; the rest stays a group,
 * which can be opened again.
 *
 * @typedef {import("../store.js").Row} Row
 *
 * @typedef {object} Node
 * @property {string} id
 * @property {string} name  Of the object, or of the group.
 * @property {string} kind
 * @property {string} tone
 * @property {string} verdict  In a word; of a group how many have which.
 * @property {number | null | undefined} lag  In ms; of a group the largest.
 * @property {string[]} members  Names of the objects of a group; [] for an object.
 *
 * @typedef {object} Edge
 * @property {string} from
 * @property {string} to
 * @property {[string, string][]} pairs  The dependencies that it stands for: input and reader.
 *
 * @typedef {object} Graph
 * @property {Node[]} nodes
 * @property {Edge[]} edges
 * @property {boolean} isFolded
 *
 * @typedef {object} Known
 * @property {Row[]} verdicts
 * @property {[string, string][]} pairs  Input and reader.
 * @property {Map<string, number | null>} lags
 * @property {Map<string, string>} [strategies]  Of views, by name: these fold them, if given.
 */
import { TONES } from "../parts/verdict.js";
import { countOf } from "../words.js";

export const SHOWN_MAX = 60;
const INPUTS_MAX = 12;
const CULPRITS_MAX = 12;
const OPENED_MAX = 48;

/** A word with which fewer names begin says nothing of a project's parts. */
const SAME_WORD_MIN = 4;

/** Words that are told apart: each may be four groups, of one type each. */
const WORDS_MAX = 12;

/**
 * @param {Known} known
 * @param {string} chosen  Name of an object; "" for none.
 * @param {string[]} path  Names on the slowest path to it.
 * @param {string[]} open  Ids of groups; one that was opened twice shows twice as many.
 * @returns {Graph}
 */
export function makeGraph({ verdicts, pairs, lags, strategies }, chosen, path, open) {
  const isFolded = verdicts.length > SHOWN_MAX;
  const seen = isFolded ? namesAlone({ verdicts, pairs, lags }, chosen, path) : undefined;
  const groupOf = strategies
    ? (/** @type {Row} */ row) => `${strategies.get(row.object_id) ?? ""} ${row.type}`
    : byFirstWord(verdicts);
  /** @type {Map<string, Row[]>} */
  const groups = new Map();
  /** @type {Map<string, string>} */
  const places = new Map();
  for (const row of verdicts) {
    const group = !seen || seen.has(row.object_id) ? "" : groupOf(row);
    places.set(row.object_id, group || row.object_id);
    if (group) groups.set(group, [...(groups.get(group) ?? []), row]);
  }
  for (const [group, rows] of groups) {
    const room = OPENED_MAX * open.filter((one) => one === group).length;
    rows.sort((a, b) => TONES.indexOf(a.tone) - TONES.indexOf(b.tone));
    // One alone is no group.
    const shown = rows.splice(0, rows.length - room > 1 ? room : rows.length);
    if (!rows.length) groups.delete(group);
    for (const row of shown) places.set(row.object_id, row.object_id);
  }
  const single = verdicts.filter((row) => places.get(row.object_id) === row.object_id);
  const nodes = [
    ...single.map((row) => objectNode(row, lags)),
    ...[...groups].map(([id, rows]) => groupNode(id, rows, lags)),
  ];
  return { nodes, edges: edgesOf(pairs, places), isFolded };
}

/**
 * The slowest path to an object: from a source, by the input that each waits for.
 * @param {string} name
 * @param {Row[]} lags  Rows of `materialization_lag`.
 * @returns {string[]}  Names, the object's own last.
 */
export function slowestPath(name, lags) {
  const slowest = new Map(lags.map((row) => [row.object_id, row.slowest_local_input_id]));
  const path = name ? [name] : [];
  for (let next = slowest.get(name); next && !path.includes(next); next = slowest.get(next))
    path.unshift(next);
  return path;
}

/**
 * Names that are shown by themselves though there are many.
 * @param {Known} known
 * @param {string} chosen
 * @param {string[]} path
 */
function namesAlone({ verdicts, pairs }, chosen, path) {
  const inputs = pairs.filter(([, reader]) => reader === chosen).map(([input]) => input);
  const culprits = verdicts.filter((row) => row.bad && !row.blame_id);
  return new Set([
    ...(chosen ? [chosen] : []),
    ...path,
    ...inputs.slice(0, INPUTS_MAX),
    ...culprits.slice(0, CULPRITS_MAX).map((row) => row.object_id),
  ]);
}

/**
 * The group of an object by the first word of its name; those whose word is rare are one of each type.
 * @param {Row[]} verdicts
 * @returns {(row: Row) => string}
 */
function byFirstWord(verdicts) {
  /** @type {Map<string, number>} */
  const many = new Map();
  for (const { object_id: name } of verdicts) {
    const word = firstWord(name);
    many.set(word, (many.get(word) ?? 0) + 1);
  }
  const common = [...many].filter(([word, names]) => word && names >= SAME_WORD_MIN);
  common.sort(([one, ones], [other, others]) => others - ones || (one < other ? -1 : 1));
  const words = new Set(common.slice(0, WORDS_MAX).map(([word]) => word));
  return ({ object_id: name, type }) =>
    `${words.has(firstWord(name)) ? firstWord(name) : ""} ${type}`;
}

/** @param {string} name  @returns {string}  "" of a name that is one word. */
function firstWord(name) {
  const end = name.search(/[_-]/);
  return name.slice(0, Math.max(end, 0));
}

/**
 * @param {Row} row
 * @param {Map<string, number | null>} lags
 * @returns {Node}
 */
function objectNode({ object_id: name, type, tone, verdict }, lags) {
  return { id: name, name, kind: type, tone, verdict, lag: lags.get(name), members: [] };
}

/**
 * @param {string} id
 * @param {Row[]} rows
 * @param {Map<string, number | null>} lags
 * @returns {Node}
 */
function groupNode(id, rows, lags) {
  const kind = rows[0].type;
  const prefix = id.slice(0, -kind.length - 1);
  const known = rows.map((row) => lags.get(row.object_id)).filter((lag) => lag != null);
  const many = countOf(rows.length, kind, kind === "index" ? "indexes" : `${kind}s`);
  return {
    id,
    name: prefix ? `${prefix}: ${many}` : many,
    kind,
    tone: TONES.find((tone) => rows.some((row) => row.tone === tone)) ?? "idle",
    verdict: countVerdicts(rows)
      .map(({ verdict, many }) => `${many}\u00a0${verdict}`)
      .join(", "),
    lag: known.length ? Math.max(.../** @type {number[]} */ (known)) : undefined,
    members: rows.map((row) => row.object_id),
  };
}

/**
 * How many have which verdict, those first that a person looks for.
 * @param {Row[]} rows
 * @returns {{verdict: string, tone: string, many: number}[]}
 */
export function countVerdicts(rows) {
  /** @type {Map<string, {verdict: string, tone: string, many: number}>} */
  const found = new Map();
  for (const { verdict, tone } of rows)
    found.set(verdict, { verdict, tone, many: (found.get(verdict)?.many ?? 0) + 1 });
  return [...found.values()].sort((a, b) => TONES.indexOf(a.tone) - TONES.indexOf(b.tone));
}

/**
 * @param {[string, string][]} pairs
 * @param {Map<string, string>} places
 * @returns {Edge[]}
 */
function edgesOf(pairs, places) {
  /** @type {Map<string, Edge>} */
  const edges = new Map();
  for (const pair of pairs) {
    const [from, to] = [places.get(pair[0]), places.get(pair[1])];
    if (from === undefined || to === undefined || from === to) continue;
    const key = JSON.stringify([from, to]);
    const edge = edges.get(key);
    if (edge) edge.pairs.push(pair);
    else edges.set(key, { from, to, pairs: [pair] });
  }
  return [...edges.values()];
}
