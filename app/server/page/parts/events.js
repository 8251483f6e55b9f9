/**
 * Asks for the events, of which the marks of the time line are made; in a while again, and not by a
 * subscription: at a moment of the past nothing is followed.
 *
 * There are thousands of them, and in half a minute hardly a new one. So after the first answer only
 * those of the last minute are asked for, and as long as there are as many earlier ones as the page
 * holds, it holds the same ones.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../server.js").ServerError} ServerError
 * @typedef {import("../store.js").Row} Row
 * @typedef {import("./marks.js").Mark} Mark
 *
 * @typedef {object} Held
 * @property {Mark[]} marks  In order of time.
 * @property {number} at  When the answer came.
 * @property {number} change  `Server.changes` when it was asked for: of the same run of the application.
 * @property {number} number  Of the request, in the order in which they began.
 */
import { marksOf } from "./marks.js";

const PATH = "/api/v1/relations/events";
const ASK_AGAIN_MS = 30_000;

/** An event may become known so long after another one that occurred later. */
const LATE_MS = 60_000;

/** @type {WeakMap<Page, Held>}  Longer than an answer: on the next screen they are the same. */
const held = new WeakMap();

/**
 * The marks of the newest answer, when it came, and why there is no newer one.
 * @param {Page} page
 * @returns {{ marks: Mark[], at: number | undefined, error: ServerError | undefined }}
 */
export function eventsOf(page) {
  const asked = page.ask("events", () => load(page));
  const { error, loading } = asked;
  // Without the token the answer is the same in a while, and the page would only ask for it again.
  const isDue = error?.code !== "TOKEN_NEEDED" && Date.now() - asked.endedAt > ASK_AGAIN_MS;
  if (!loading && (isDue || asked.mayWorkNow)) asked.again();
  const known = held.get(page);
  return { marks: known?.marks ?? [], at: known?.at, error };
}

let loads = 0;

/** @param {Page} page */
async function load(page) {
  // Of two at a time, after another screen was shown, the one that began later has the newer marks.
  const number = ++loads;
  const change = page.server.changes;
  const known = held.get(page);
  // Another run may have other events, as many as these.
  const marks = (known?.change === change && (await newer(page, known.marks))) || (await all(page));
  if (number >= (held.get(page)?.number ?? 0)) held.set(page, { marks, at: Date.now(), change, number });
}

/** @param {Page} page */
async function all(page) {
  return marksOf((await page.server.get(PATH)).rows);
}

/**
 * All marks, made of those that are known; undefined if they do not tell what there was before.
 * @param {Page} page
 * @param {Mark[]} known
 * @returns {Promise<Mark[] | undefined>}
 */
async function newer(page, known) {
  const begin = (known.at(-1)?.at ?? 0) - LATE_MS;
  if (begin <= 0) return undefined;
  const { rows, earlier } = await page.server.get(`${PATH}?from=${begin}`);
  const kept = known.filter(({ at }) => at < begin);
  return kept.length === earlier ? [...kept, ...marksOf(rows)] : undefined;
}
