/**
 * Lists what the graph shows, for those who listen.
 *
 * @typedef {import("../graph/model.js").Graph} Graph
 * @typedef {import("../graph/model.js").Edge} Edge
 */
import { html } from "../vendor/lit-html/lit-html.js";
import { late, visible } from "../words.js";
import { sayRate } from "./rates.js";

/**
 * @param {Graph} graph
 * @param {((edge: Edge) => number | undefined) | undefined} rate
 */
export function drawGraphList({ nodes, edges }, rate) {
  const names = new Map(nodes.map(({ id, name }) => [id, visible(name, 80)]));
  const reads = (/** @type {string} */ id) =>
    edges
      .filter(({ to }) => to === id)
      .map((edge) => {
        const rows = rate?.(edge);
        const often = rows === undefined ? "" : ` (${sayRate(rows)}\u00a0rows a second)`;
        return `${names.get(edge.from)}${often}`;
      })
      .join(", ");
  return html`<ul class="sr" aria-label="The graph as a list">
    ${nodes.map(({ id, kind, verdict, lag }) => {
      const behind = lag == null ? "" : `, ${late(lag)} behind`;
      const read = reads(id);
      return html`<li>
        ${names.get(id)}, ${kind}, ${verdict}${behind}${read ? `; reads ${read}` : ""}.
      </li>`;
    })}
  </ul>`;
}
