/**
 * The neighbours of an object: what it reads and who reads it, each with its verdict: flow to the
 * right, as on the graph.
 *
 * @typedef {import("../../main.js").Page} Page
 * @typedef {import("../../store.js").Row} Row
 */
import { html, nothing } from "../../vendor/lit-html/lit-html.js";
import { objectLink } from "../object_link.js";
import { drawVerdict } from "../verdict.js";
import { visible } from "../../words.js";
import { drawAbsent, drawSection } from "./bits.js";

/**
 * @param {Page} page
 * @param {Row} verdict
 */
export function drawNeighbours(page, verdict) {
  const edges = page.rows("dependencies") ?? [];
  const name = verdict.object_id;
  const missing = page.error("dependencies");
  const title = "What it reads, and who reads it";
  if (missing && !page.rows("dependencies"))
    return drawSection("neighbours", title, drawAbsent(visible(missing.message, 400)), {
      wide: true,
    });
  const below = edges
    .filter((row) => row.object_id === name)
    .map((row) => row.referenced_object_id);
  const above = edges
    .filter((row) => row.referenced_object_id === name)
    .map((row) => row.object_id);
  const verdicts = new Map((page.rows("verdicts") ?? []).map((row) => [row.object_id, row]));
  const slowest = page.rows("behind")?.[0]?.slowest_local_input_id;
  const outside = verdict.type === "source" ? "the world outside" : "nothing";
  const content = html`<div class="neighbours">
    ${drawSide(page, "Reads", below, verdicts, outside, slowest)}
    <svg class="flow" viewBox="0 0 24 12" width="24" height="12" aria-hidden="true">
      <path d="M0 6h22M17 1l5 5-5 5" fill="none" stroke="currentColor" stroke-width="1.5" />
    </svg>
    <p class="self name">${visible(name)}</p>
    <svg class="flow" viewBox="0 0 24 12" width="24" height="12" aria-hidden="true">
      <path d="M0 6h22M17 1l5 5-5 5" fill="none" stroke="currentColor" stroke-width="1.5" />
    </svg>
    ${drawSide(page, "Read by", above, verdicts, verdict.type === "sink"
      ? "the world outside" : "nobody")}
  </div>`;
  return drawSection("neighbours", title, content, { wide: true });
}

/**
 * @param {Page} page
 * @param {string} title
 * @param {string[]} names
 * @param {Map<string, Row>} verdicts
 * @param {string} none
 * @param {string | null} [slowest]  That which holds it up.
 */
function drawSide(page, title, names, verdicts, none, slowest) {
  return html`<div class="side">
    <h3>${title}</h3>
    ${
      names.length
        ? html`<ul>
            ${names.map(
              (name) =>
                html`<li>
                  ${objectLink(page, name, verdicts.get(name)?.type)}
                  ${verdicts.has(name)
                ? drawVerdict(verdicts.get(name))
                : html`<span class="absent">not there</span>`}
                  ${names.length > 1 && name === slowest
                ? html`<span class="tag">slowest</span>` : nothing}
                </li>`,
            )}
          </ul>`
        : html`<p class="absent">${none}</p>`
    }
  </div>`;
}
