/**
 * The sentence of the whole, in large letters, and heard when it changes.
 *
 * @typedef {import("../main.js").Page} Page
 */
import { html } from "../vendor/lit-html/lit-html.js";
import { visible } from "../words.js";
import { drawSentence } from "./object_link.js";

/**
 * @param {Page} page
 * @param {string | undefined} summary  Of `verdict_summary`; undefined until it is there.
 * @param {(name: string) => boolean} isKnown  True for the name of an object.
 */
export function drawHeadline(page, summary, isKnown) {
  const text = summary ?? "";
  // The first sentence is the answer, the others are its reasons.
  const end = text.indexOf(" fresh.") + " fresh.".length;
  const answer = end < " fresh.".length ? text : text.slice(0, end);
  return html`<div class="headline">
    <h1>${answer ? drawSentence(page, answer, isKnown) : "…"}</h1>
    <p>${drawSentence(page, text.slice(answer.length), isKnown)}</p>
    <p class="sr" role="status">${heard(page, text)}</p>
  </div>`;
}

/**
 * What is said aloud: not each second with its seconds, only when something else than a number changed.
 * @param {Page} page
 * @param {string} text
 */
function heard(page, text) {
  const bare = text.replace(/\d+(\.\d+)? (ms|s|min|h|d)\b/g, "");
  if (page.local.heardBare !== bare) {
    page.local.heardBare = bare;
    page.local.heard = visible(text, 400);
  }
  return page.local.heard;
}
