/**
 * Rows that go from an object to its reader: what the reader's own input has counted.
 *
 * The operator by which an object reads an input is its `Source`, with the input's name as detail; rows
 * that have left it are in `message_counts`, by channel. Of micro-batches whose rows are not known
 * there is no rate.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../store.js").Row} Row
 */
import { ratesOf } from "../parts/rates.js";

/** Some micro-batches long, and short enough to see that nothing comes any more. */
const WINDOW_MS = 12_000;

/**
 * Note what each pair has counted by now.
 * @param {Page} page  It follows `objects`, `reads` (lir_mapping), `channels` and `messages`.
 */
export function noteRates(page) {
  const [objects, reads, channels, messages] = ["objects", "reads", "channels", "messages"].map(
    (key) => page.rows(key),
  );
  if (!objects || !reads || !channels || !messages) return;
  const of = pairsOf(page, objects, reads, channels);
  /** @type {Map<string, { rows: number, missed: number }>} */
  const sums = new Map();
  for (const { channel_id: id, sent, batch_sent: counted, batch_observed: observed } of messages) {
    const pair = of.get(id);
    if (!pair) continue;
    const { rows, missed } = sums.get(pair) ?? { rows: 0, missed: 0 };
    sums.set(pair, { rows: rows + sent, missed: missed + observed - counted });
  }
  const rates = ratesOf(page);
  for (const [pair, { rows, missed }] of sums) rates.note(pair, rows, page.server.at, missed);
}

/**
 * Rows a second over all pairs that an edge stands for; undefined if one of them is not counted, or
 * not for long enough: what is known of the others is not all that moves.
 * @param {Page} page
 * @param {[string, string][]} pairs
 */
export function rateOf(page, pairs) {
  const rates = ratesOf(page);
  let sum = 0;
  for (const pair of pairs) {
    const growth = rates.lately(JSON.stringify(pair), WINDOW_MS);
    if (!growth) return undefined;
    sum += growth.perSecond;
  }
  return pairs.length ? sum : undefined;
}

/**
 * Pairs by channel; made anew only when the rows have changed that say so.
 * @param {Page} page
 * @param {Row[]} objects
 * @param {Row[]} reads
 * @param {Row[]} channels
 * @returns {Map<number, string>}
 */
function pairsOf(page, objects, reads, channels) {
  const known = page.local.pairs;
  if (known?.reads === reads && known.channels === channels) return known.of;
  const names = new Map(objects.map((row) => [row.global_id, row]));
  const pairs = new Map();
  for (const { global_id: global, detail, operator_id_start: operator } of reads) {
    const reader = names.get(global);
    if (reader && reader.type !== "source") pairs.set(operator, JSON.stringify([detail, reader.id]));
  }
  const of = new Map();
  for (const { id, from_operator_id: from } of channels)
    if (pairs.has(from)) of.set(id, pairs.get(from));
  page.local.pairs = { reads, channels, of };
  return of;
}
