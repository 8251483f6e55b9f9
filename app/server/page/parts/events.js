/**
 * Asks for the events, of which the marks of the time line are made; in a while again, and not by a
 * subscription: at a moment of the past nothing is followed.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../server.js").ServerError} ServerError
 * @typedef {import("../store.js").Row} Row
 * @typedef {import("./marks.js").Mark} Mark
 */
import { marksOf } from "./marks.js";

const ASK_AGAIN_MS = 30_000;

/** @type {WeakMap<object, Mark[]>}  Made once of the rows of an answer. */
const made = new WeakMap();

/**
 * The marks of the newest answer, when it came, and why there is no newer one.
 * @param {Page} page
 * @returns {{ marks: Mark[], at: number | undefined, error: ServerError | undefined }}
 */
export function eventsOf(page) {
  const asked = page.ask("events", async () => {
    /** @type {{ rows: Row[] }} */
    const { rows } = await page.server.get("/api/v1/relations/events");
    return { rows, at: Date.now() };
  });
  const { value, error, loading } = asked;
  // Without the token the answer is the same in a while, and the page would only ask for it again.
  const isDue = error?.code !== "TOKEN_NEEDED" && Date.now() - asked.endedAt > ASK_AGAIN_MS;
  if (!loading && (isDue || asked.mayWorkNow)) asked.again();
  if (!value) return { marks: [], at: undefined, error };
  let marks = made.get(value.rows);
  if (!marks) made.set(value.rows, (marks = marksOf(value.rows)));
  return { marks, at: value.at, error };
}
