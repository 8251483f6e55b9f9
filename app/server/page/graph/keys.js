/**
 * Keys inside of the graph: arrows from node to node, along edges and within a layer.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../parts/graph.js").Drawn} Drawn
 */
import { bringIntoSight, zoom } from "./view.js";

/** Nodes whose centres are no further apart are in one layer. */
const LAYER_PX = 60;

/**
 * @param {Page} page
 * @param {Drawn} drawn
 * @param {string} at  Id of the node that has the focus.
 * @param {KeyboardEvent} event
 */
export function takeGraphKey(page, drawn, at, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const { placed } = drawn;
  const factor = { "+": 1.25, "=": 1.25, "-": 0.8, 0: 0 }[event.key];
  const next = neighbour(drawn, at, event.key);
  if (factor !== undefined) zoom(page, placed, factor);
  else if (next) reach(page, drawn, next);
  else if (event.key === "Enter" || event.key === " ") drawn.choose(at);
  else if (event.key === "Escape") page.choose({ object: "" });
  else if (!event.key.startsWith("Arrow")) return;
  event.preventDefault();
}

/**
 * @param {Page} page
 * @param {Drawn} drawn
 * @param {string} id
 */
function reach(page, { placed }, id) {
  page.local.reached = id;
  bringIntoSight(page, placed, id);
  for (const node of document.querySelectorAll("#graph [data-node]"))
    if (/** @type {SVGElement} */ (node).dataset.node === id)
      /** @type {SVGElement} */ (node).focus({ preventScroll: true });
  page.redraw();
}

/**
 * @param {Drawn} drawn
 * @param {string} at
 * @param {string} key
 * @returns {string | undefined}
 */
function neighbour({ graph, placed, path }, at, key) {
  const { centres } = placed;
  const [x, y] = centres[at] ?? [0, 0];
  const nearest = (/** @type {string[]} */ ids) =>
    ids
      .filter((id) => centres[id])
      .sort(
        (a, b) =>
          Number(path.has(b)) - Number(path.has(a)) ||
          Math.abs(centres[a][1] - y) - Math.abs(centres[b][1] - y),
      )[0];
  if (key === "ArrowLeft")
    return nearest(graph.edges.filter(({ to }) => to === at).map(({ from }) => from));
  if (key === "ArrowRight")
    return nearest(graph.edges.filter(({ from }) => from === at).map(({ to }) => to));
  const turn = { ArrowUp: -1, ArrowDown: 1 }[key];
  if (!turn) return undefined;
  return Object.keys(centres)
    .filter((id) => (centres[id][1] - y) * turn > 0 && Math.abs(centres[id][0] - x) < LAYER_PX)
    .sort((a, b) => Math.abs(centres[a][1] - y) - Math.abs(centres[b][1] - y))[0];
}
