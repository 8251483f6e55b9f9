/**
 * Finds an object by a part of its name.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../store.js").Row} Row
 */
import { html } from "../vendor/lit-html/lit-html.js";
import { countOf, visible } from "../words.js";
import { closeDialog } from "./frame.js";
import { kindSign } from "./object_link.js";
import { drawVerdict } from "./verdict.js";

const SHOWN_MAX = 50;

/** The question for what can be found; the frame forgets its answer when a dialog opens. */
export const OBJECTS = "objects to find";

/**
 * The objects with their verdicts: those that the screen follows, or as asked when the dialog opened.
 * @param {Page} page
 * @returns {{ rows: Row[], error: { message: string } | undefined }}
 */
function readObjects(page) {
  const followed = page.rows("verdicts");
  if (followed) return { rows: followed, error: undefined };
  const asOf = page.asOf === undefined ? "" : `?as_of=${page.asOf}`;
  const asked = page.ask(OBJECTS, () => page.server.get(`/api/v1/relations/verdicts${asOf}`));
  return { rows: asked.value?.rows ?? [], error: asked.error };
}

/**
 * What is found by what is typed, and which of it is chosen.
 * @param {Page} page
 */
function find(page) {
  const { rows, error } = readObjects(page);
  const typed = page.local.typed ?? "";
  const found = match(rows, typed);
  const at = Math.min(page.local.foundAt ?? 0, Math.max(0, found.length - 1));
  return { error, rows, typed, found, at, chosen: found[at] };
}

/**
 * @param {Page} page
 * @param {KeyboardEvent} event
 */
function takeKey(page, event) {
  // As it is now, and not as it was drawn last: keys may come faster than frames, and Enter must
  // not take what was found by half a name.
  const { found, at, chosen } = find(page);
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (event.key === "Enter" && chosen) take(page, chosen, event.shiftKey);
  else if (step && found.length) {
    page.local.foundAt = (at + step + found.length) % found.length;
    page.redraw();
  } else return;
  event.preventDefault();
}

/** @param {Page} page */
export function drawSearch(page) {
  const { error, rows, typed, found, at, chosen } = find(page);
  return html`<div class="search">
    <input
      type="search"
      role="combobox"
      aria-label="Name of an object"
      aria-expanded="true"
      aria-controls="found"
      aria-autocomplete="list"
      aria-activedescendant=${chosen ? `found-${at}` : ""}
      placeholder="Name of an object"
      autocomplete="off"
      spellcheck="false"
      .value=${typed}
      @input=${(/** @type {Event} */ event) => {
        page.local.typed = /** @type {HTMLInputElement} */ (event.target).value;
        page.local.foundAt = 0;
        page.redraw();
      }}
      @keydown=${(/** @type {KeyboardEvent} */ event) => takeKey(page, event)}
    />
    <ul role="listbox" id="found" aria-label="Objects">
      ${found.map(
        (row, place) => html`<li
          role="option"
          id="found-${place}"
          aria-selected=${place === at}
          @click=${() => take(page, row, false)}
        >
          <span class="object">${kindSign(row.type)}<bdi>${visible(row.object_id, 80)}</bdi></span>
          ${drawVerdict(row)}
        </li>`,
      )}
    </ul>
    <p class="search-foot">${foot(error, rows, found, page.kind)}</p>
  </div>`;
}

/**
 * @param {{ message: string } | undefined} error
 * @param {Row[]} rows
 * @param {Row[]} found
 * @param {string} kind
 */
function foot(error, rows, found, kind) {
  if (error) return visible(error.message, 400);
  if (rows.length && !found.length) return "No object has this in its name.";
  const here = kind === "" ? "Enter shows it in the graph, Shift Enter opens its page." : "";
  return `${found.length} of ${countOf(rows.length, "object")}. ${here}`;
}

/**
 * @param {Page} page
 * @param {Row} row
 * @param {boolean} opens  Its own page, also on the first screen.
 */
function take(page, row, opens) {
  closeDialog(page);
  page.local.typed = "";
  if (page.kind === "" && !opens) page.choose({ object: row.object_id });
  else page.go(page.address("object", row.object_id));
}

/**
 * Names that begin with it first, then those that have it inside.
 * @param {Row[]} rows
 * @param {string} typed
 */
function match(rows, typed) {
  const text = typed.trim().toLowerCase();
  const has = rows.filter((row) => row.object_id.toLowerCase().includes(text));
  const begins = (/** @type {Row} */ row) => row.object_id.toLowerCase().startsWith(text);
  return [...has.filter(begins), ...has.filter((row) => !begins(row))].slice(0, SHOWN_MAX);
}
