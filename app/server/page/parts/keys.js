/**
 * Keys that work everywhere, and their list.
 *
 * @typedef {import("../main.js").Page} Page
 */
import { html } from "../vendor/lit-html/lit-html.js";
import { closeDialog, openDialog } from "./frame.js";

const LISTED = /** @type {[string[], string][]} */ ([
  [["/"], "find an object"],
  [["?"], "this list"],
  [["g", "o"], "to the overview"],
  [["g", "h"], "to the shards"],
  [["g", "s"], "to SQL"],
  [["g", "l"], "to the lane"],
  [["g", "p"], "to the project"],
  [["Tab"], "to the next link, button or column; into the graph"],
  [["←", "→"], "in the graph: to what an object reads, to what reads it"],
  [["↑", "↓"], "in the graph: to the object above or below"],
  [["Enter"], "in the graph: choose an object, open a group"],
  [["+", "−", "0"], "in the graph: larger, smaller, all of it"],
  [["←", "→"], "on the time line: to the mark before, to the next one; with Shift by a small step"],
  [["PageUp", "PageDown"], "on the time line: ten small steps on, back"],
  [["+", "−"], "on the time line: less time, more time"],
  [["Home", "End"], "on the time line: to the first mark; to now"],
  [["←", "↑", "→", "↓"], "on the axis of a shard: to the hold, batch or round before, to the next one"],
  [["↑", "↓"], "in the search: to the one before, to the next one"],
  [["Enter"], "in the search: show it"],
  [["Shift", "Enter"], "in the search, on the overview: open its page"],
  [["Ctrl", "Enter"], "in SQL: run the statement"],
  [["Ctrl", "Space"], "in SQL: complete a name"],
  [["Esc"], "close; take back a choice"],
]);

const PLACES = /** @type {Record<string, string>} */ ({
  o: "",
  h: "shard",
  s: "sql",
  l: "lane",
  p: "project",
});

/** A place is chosen by two keys, the second one within so long. */
const TOGETHER_MS = 1_500;

/**
 * The list.
 * @param {Page} page
 */
export function drawKeys(page) {
  return html`<div class="dialog-head">
      <h2>Keys</h2>
      <button aria-label="Esc: close" @click=${() => closeDialog(page)}>Esc</button>
    </div>
    <dl class="keys">
      ${LISTED.map(
        ([keys, what]) => html`<dt>${keys.map((key) => html`<kbd>${key}</kbd> `)}</dt>
          <dd>${what}</dd>`,
      )}
    </dl>`;
}

/**
 * Listen to keys for as long as the page is open. What is typed into a field is never taken.
 * @param {Page} page
 */
export function takeKeys(page) {
  let wentAt = -TOGETHER_MS;
  document.addEventListener("keydown", (event) => {
    const { key, target } = event;
    if (event.ctrlKey || event.metaKey || event.altKey || page.dialog || isTyping(target)) return;
    const place = PLACES[key];
    if (event.timeStamp - wentAt < TOGETHER_MS && place !== undefined) page.go(page.address(place));
    else if (key === "g") wentAt = event.timeStamp;
    else if (key === "/" || key === "?") openDialog(page, key === "/" ? "search" : "keys");
    else return;
    if (key !== "g") wentAt = -TOGETHER_MS;
    event.preventDefault();
  });
}

/** @param {EventTarget | null} target */
function isTyping(target) {
  const element = /** @type {HTMLElement} */ (target);
  return element.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(element.tagName);
}
