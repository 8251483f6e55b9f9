/**
 * Asks for the application's token, which whatever changes something needs, and checks it.
 *
 * @typedef {import("../main.js").Page} Page
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { visible } from "../words.js";
import { closeDialog } from "./frame.js";

/** @param {Page} page */
export function drawTokenForm(page) {
  const refused = page.local.tokenError ?? page.codeError;
  return html`<form class="notice panel-inside" @submit=${enter(page)}>
    <h2>The application's token</h2>
    ${
      refused
        ? html`<p class="problem" role="alert">
            ${visible(refused.message, 400)} ${visible(refused.hint, 400)}
          </p>`
        : nothing
    }
    <p class="muted">
      What changes something needs it. The link that the application prints at its start has a code
      that stands for it, once and for ten minutes. Later it is in <code>application.json</code> (of
      one that follows another runtime, in <code>following.json</code>), in the application's data
      folder.
    </p>
    <div class="row">
      <input name="token" type="password" required autocomplete="off" aria-label="Token" />
      <button class="primary">Enter</button>
    </div>
  </form>`;
}

/** @param {Page} page */
function enter(page) {
  return async (/** @type {SubmitEvent} */ event) => {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const token = String(form.get("token")).trim();
    try {
      await page.server.post("/api/v1/session", { token });
      page.local.tokenError = page.codeError = undefined;
      page.server.token = token;
      closeDialog(page);
    } catch (error) {
      page.local.tokenError = error;
    }
    page.redraw();
  };
}
