/**
 * The frame around each screen: where one can go, as of when the page is, and what is wrong with the
 * connection.
 *
 * @typedef {import("../main.js").Page} Page
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { clockInZone, span } from "../words.js";
import { drawKeys } from "./keys.js";
import { drawSearch, OBJECTS } from "./search.js";
import { failed } from "./states.js";
import { drawTimeInZone } from "./time.js";
import { drawTimeline } from "./timeline.js";
import { drawTokenForm } from "./token_form.js";

const PLACES = [
  ["", "Overview"],
  ["shard", "Shards"],
  ["sql", "SQL"],
  ["lane", "Lane"],
  ["project", "Project"],
];

const DIALOGS = /** @type {Record<string, (page: Page) => unknown>} */ ({
  search: drawSearch,
  keys: drawKeys,
  token: drawTokenForm,
});

/** @param {Page} page */
export function drawFrame(page) {
  return html`
    <a class="skip" href="#main" @click=${skip}>To the content</a>
    <header class="bar">
      <div class="bar-inside">
        <a class="brand" href=${page.address()} aria-label="Shardline">
          <svg viewBox="0 0 32 32" fill="none" stroke-width="4" stroke-linecap="round" aria-hidden="true">
            <path d="M4 8h24M4 16h16M4 24h20" /></svg
          ><span>Shardline</span>
        </a>
        <nav aria-label="Screens">
          ${PLACES.map(
            ([kind, title]) => html`<a
              href=${page.address(kind)}
              aria-current=${page.kind === kind ? "page" : nothing}
              >${title}</a
            >`,
          )}
        </nav>
        <div class="bar-tools">
          <button class="find" aria-label="Find an object" @click=${() => openDialog(page, "search")}>
            <svg class="kind" viewBox="0 0 14 14" fill="none" stroke="currentColor" stroke-width="1.5">
              <circle cx="6" cy="6" r="4.2" /><path d="m9.2 9.2 3.6 3.6" /></svg
            ><span>Find an object</span><kbd>/</kbd>
          </button>
          <button aria-label="Keys" @click=${() => openDialog(page, "keys")}>?</button>
        </div>
      </div>
    </header>
    ${drawAsOf(page)}
    <main id="main" tabindex="-1">
      ${page.screenError ? failed(page.screenError) : page.screen?.draw(page)}
    </main>
    ${drawTimeline(page)} ${drawDialog(page)}
  `;
}

/**
 * Let a dialog be drawn.
 * @param {Page} page
 * @param {string} dialog  A name of `DIALOGS`.
 */
export function openDialog(page, dialog) {
  page.dialog = dialog;
  page.forget(OBJECTS);
  page.redraw();
}

/** Open the dialog that was drawn, as something that all else waits for. */
export function showDialog() {
  const found = /** @type {HTMLDialogElement | null} */ (document.getElementById("dialog"));
  if (found && !found.open) {
    found.showModal();
    found.querySelector("input")?.focus();
  }
}

/**
 * Close the dialog: the focus goes back to where it was.
 *
 * The page knows of it at once. The element's `close` event is a task of its own that a key may
 * overtake: until it came, `?` after Esc would be taken for a key of the dialog that is no more.
 * Nor does its field wait for the next frame to lose the focus: what is typed there is no key.
 * @param {Page} page
 */
export function closeDialog(page) {
  page.dialog = "";
  page.codeError = undefined;
  // Asked for again with the next request that needs it.
  page.server.forgoToken();
  const dialog = /** @type {HTMLDialogElement | null} */ (document.getElementById("dialog"));
  const focused = /** @type {HTMLElement | null} */ (document.activeElement);
  if (dialog?.contains(focused)) focused?.blur();
  dialog?.close();
  page.redraw();
}

/** @param {Page} page */
function drawDialog(page) {
  const { server } = page;
  // Asked for by itself: what was wanted cannot be had without it.
  if ((server.needsToken || page.codeError) && !page.dialog) page.dialog = "token";
  const draw = DIALOGS[page.dialog];
  if (!draw) return nothing;
  return html`<dialog id="dialog" aria-label=${page.dialog} @cancel=${() => closeDialog(page)}>
    ${draw(page)}
  </dialog>`;
}

/**
 * As of when all of the page is. The room for it is always there: nothing moves when it turns.
 * @param {Page} page
 */
function drawAsOf(page) {
  const { server, asOf } = page;
  const since = Math.max(1, Math.round(server.age / 1_000)) * 1_000;
  if (asOf !== undefined) {
    return strip(
      "past",
      `The page shows ${clockInZone(asOf)}.`,
      html`<strong>As of ${drawTimeInZone(asOf)}, ${span(Date.now() - asOf)} ago</strong>
        <button class="plain" @click=${() => page.choose({ at: "" })}>Back to now</button>`,
    );
  }
  if (!server.at) return strip("", "Connecting.", html`<i class="live-dot off"></i>Connecting…`);
  if (server.connected) {
    return strip("", "", html`<i class="live-dot"></i><span>Live, ${drawTimeInZone(server.at)}</span>`);
  }
  if (!server.lost) {
    return strip(
      "",
      "",
      html`<i class="live-dot off"></i
        ><span>As of ${drawTimeInZone(server.at)}, ${span(since)} ago. Connecting…</span>`,
    );
  }
  return strip(
    "lost",
    `The application does not answer. The page is as of ${clockInZone(server.at)}.`,
    html`<strong>As of ${drawTimeInZone(server.at)}, ${span(since)} ago</strong>
      <span class="more"
        >The application does not answer.<span class="wide-only">
          When it does, this goes on by itself.</span
        ></span
      >`,
  );
}

/**
 * @param {string} style
 * @param {string} heard  What is said to those who listen, once.
 * @param {unknown} seen
 */
function strip(style, heard, seen) {
  document.body.classList.toggle("lost-below", style === "lost");
  return html`<section class="as-of ${style}" aria-label="Time of what is shown">
    <div class="as-of-inside">${seen}</div>
    <p class="sr" role="status">${heard}</p>
  </section>`;
}

/** @param {Event} event  Not by the address: what follows `#` there is the page's own. */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}
