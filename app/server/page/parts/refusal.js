/**
 * An error in the application's words, with the place, the hint and the code that it has.
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { visible, visibleLines } from "../words.js";

/**
 * @param {{ message: string, hint: string, code: string, place?: string }} error
 * @param {unknown} [more]  Said after the hint.
 */
export function drawRefusal({ message, hint, code, place = "" }, more = nothing) {
  return html`<div class="refusal" role="alert">
    ${place ? html`<p class="place">${visible(place, 300)}</p>` : nothing}
    <pre>${visibleLines(message, LONGEST)}</pre>
    ${hint ? html`<p>${visible(hint, LONGEST)}</p>` : nothing} ${more}
    <p class="code">${visible(code, 100)}</p>
  </div>`;
}

const LONGEST = 4_000;
