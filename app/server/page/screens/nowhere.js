/**
 * The screen of an address that is none: the way back.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../main.js").Screen} Screen
 */
import { html } from "../vendor/lit-html/lit-html.js";
import { visible } from "../words.js";

/** @type {Screen} */
export const screen = {
  title: () => "Not here",
  live: true,
  // Nothing is shown of it: what is followed is what tells that the application is there.
  follows: () => ({ summary: { relation: "verdict_summary" } }),
  draw: (page) => html`<div class="object-screen no-object">
    <header class="object-head">
      <h1>There is nothing here</h1>
      <p>
        <span class="name">${visible(location.pathname)}</span> is no address of this page.
        <a href=${page.address()}>Overview</a>
      </p>
    </header>
  </div>`,
};
