/**
 * Stands in the place of rows where there are none, or an error.
 *
 * @typedef {import("../server.js").ServerError} ServerError
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { visible } from "../words.js";

/**
 * @param {string} title  What there is none of: "No errors."
 * @param {unknown} [hint]  What to do, or why that is well.
 */
export function empty(title, hint = nothing) {
  return html`<div class="state"><strong>${title}</strong><span>${hint}</span></div>`;
}

/**
 * An error of the application, in its words.
 * @param {ServerError} error
 */
export function failed(error) {
  return html`<div class="state wrong" role="alert">
    <strong>${visible(error.message, 400)}</strong><span>${visible(error.hint, 400)}</span>
  </div>`;
}
