/**
 * Says in words what a batch, a hold or a round of maintenance is, and names each for the address.
 *
 * @typedef {import("../store.js").Row} Row
 */
import { count, countOf, moment, size, span, visible } from "../words.js";
import { frontierText, isBefore } from "./frontier.js";

/** @param {Row} batch */
export function batchKey({ lower, upper, level }) {
  return `batch ${lower} ${upper} ${level}`;
}

/** @param {Row} round */
export function roundKey({ occurred_at: at, merges, collected, swept }) {
  return `round ${at} ${merges} ${collected} ${swept}`;
}

/**
 * @param {Row} batch
 * @param {import("./frontier.js").Time} from  The shard's since.
 */
export function batchText(batch, from) {
  const { lower, upper, level, parts, updates, records } = batch;
  const isMerged = isBefore(lower, from);
  const begins = isMerged ? `from before the since` : `from ${frontierText(lower)}`;
  const long = upper != null && !isMerged ? ` (${span(upper - lower)})` : "";
  const holds = parts
    ? [
        countOf(parts, "part"),
        countOf(updates ?? records, "update"),
        size(batch.size),
      ].join(", ")
    : "without updates";
  const what = level == null ? "Batch" : `Batch of level ${level}`;
  return `${what}, ${begins} to ${frontierText(upper)}${long}: ${holds}`;
}

/** @param {Row} hold */
export function holdText(hold) {
  const { kind, name, owner, since, age, silent, gain, only_size: bytes } = hold;
  const old = age == null ? "" : `, ${span(age)} old`;
  const heard = silent == null ? "" : `, heard of ${span(silent)} ago`;
  const kept = [
    gain ? `${span(gain)} of history` : "no history",
    bytes == null ? "" : bytes ? size(bytes) : "no bytes",
  ].filter(Boolean);
  const whose = owner ? `, ${visible(owner, 200)}` : "";
  const who = `${kind === "hold" ? "Hold" : "Lease"} ${visible(name, 60)}${whose}${old}${heard}`;
  const needs = `reads from ${frontierText(since)} on; alone it keeps ${kept.join(" and ")}`;
  return `${who}: ${needs}`;
}

/** @param {Row[]} rounds  The oldest first. */
export function roundsText(rounds) {
  const [first] = rounds;
  if (rounds.length === 1) return roundText(first);
  const at = [first, rounds[rounds.length - 1]].map((round) =>
    frontierText(moment(round.occurred_at)),
  );
  const sum = (/** @type {string} */ name) =>
    rounds.reduce((before, round) => before + (round[name] ?? 0), 0);
  const failed = rounds.filter((round) => round.failed?.length).length;
  const all = { merges: sum("merges"), collected: sum("collected"), swept: sum("swept") };
  const more = failed ? `, and steps of ${count(failed)} of them failed` : "";
  const many = `${countOf(rounds.length, "round")} of maintenance, ${at[0]} to ${at[1]}`;
  return `${many}: ${did(all) || "nothing"}${more}`;
}

/** @param {Row} round */
function roundText(round) {
  const { failed, took } = round;
  const steps = (failed ?? []).map((/** @type {string} */ step) => visible(step)).join(", ");
  const all = [did(round), steps && `failed: ${steps}`].filter(Boolean).join(", ");
  const at = frontierText(moment(round.occurred_at));
  return `Maintenance, ${at}: ${all || "nothing to do"} (${span(took)})`;
}

/** @param {Row} round */
function did({ merges, collected, swept }) {
  return [
    merges ? countOf(merges, "merge") : "",
    collected ? `${countOf(collected, "blob")} deleted by collection` : "",
    swept ? `${countOf(swept, "leaked blob")} swept` : "",
  ]
    .filter(Boolean)
    .join(", ");
}
