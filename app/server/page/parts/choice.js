/**
 * Draws a choice of one among a few, all of which are seen.
 */
import { html } from "../vendor/lit-html/lit-html.js";

/**
 * @param {string} label  For those who listen.
 * @param {[string, string][]} options  Value and title.
 * @param {string} chosen
 * @param {(value: string) => void} choose
 */
export function drawChoice(label, options, chosen, choose) {
  return html`<div class="choice" role="group" aria-label=${label}>
    ${options.map(
      ([value, title]) =>
        html`<button
          type="button"
          aria-pressed=${String(value === chosen)}
          @click=${() => choose(value)}
        >
          ${title}
        </button>`,
    )}
  </div>`;
}
