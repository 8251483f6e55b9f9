/**
 * The operators that rows go through, as a graph laid out by dagre: rows flow downwards, the
 * strength of a node's colour is its share of the time, an edge has its rows.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("./object/operators.js").Operator} Operator
 *
 * @typedef {object} NodeText
 * @property {string} label
 * @property {string} detail
 * @property {string} left  Below it, such as its time.
 * @property {string} right  Below it, such as its state.
 * @property {number} heat  0 to 1.
 */
import { html, svg } from "../vendor/lit-html/lit-html.js";
import { Graph, layout } from "../vendor/dagre/dagre.esm.js";
import { visible } from "../words.js";

/** Two beside each other fit into their panel in a window of 1280 px. */
const WIDTH = 208;
const HEIGHT = 68;

/** A larger graph is not drawn: the table has the same, and is searched faster. */
export const NODES_MAX = 80;

/**
 * @typedef {object} Laid
 * @property {number} width
 * @property {number} height
 * @property {Map<number, { x: number, y: number }>} nodes
 * @property {{ from: number, to: number, points: { x: number, y: number }[] }[]} edges
 */

/** @type {{ key: string, laid: Laid } | undefined} */
let last;

/**
 * Places of operators; made anew only for other operators or edges.
 * @param {Operator[]} operators
 * @returns {Laid}
 */
function layOut(operators) {
  const key = JSON.stringify(operators.map((one) => [one.id, one.inputs]));
  if (last?.key === key) return last.laid;
  const graph = new Graph();
  graph.setGraph({ rankdir: "TB", nodesep: 20, ranksep: 34, marginx: 4, marginy: 4 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { id } of operators) graph.setNode(String(id), { width: WIDTH, height: HEIGHT });
  for (const { id, inputs } of operators)
    for (const input of inputs) graph.setEdge(String(input), String(id), {});
  layout(graph);
  const { width = 0, height = 0 } = graph.graph();
  const laid = {
    width,
    height,
    nodes: new Map(operators.map(({ id }) => [id, graph.node(String(id))])),
    edges: graph.edges().map((/** @type {any} */ edge) => ({
      from: Number(edge.v),
      to: Number(edge.w),
      points: graph.edge(edge).points,
    })),
  };
  last = { key, laid };
  return laid;
}

/**
 * @param {Operator[]} operators  Those that rows go through.
 * @param {(operator: Operator) => NodeText} describe
 * @param {(from: number, to: number) => string} rowsOf  Of an edge.
 * @param {number | undefined} chosen
 * @param {(operator: Operator) => void} choose
 */
export function drawOperatorGraph(operators, describe, rowsOf, chosen, choose) {
  const { width, height, nodes, edges } = layOut(operators);
  return html`<div
    class="operator-graph scroll"
    tabindex="0"
    role="group"
    aria-label="Operators, rows flow downwards"
  >
    <svg viewBox="0 0 ${width} ${height}" width=${width} height=${height}>
      ${edges.map(({ from, to, points }) => drawEdge(points, rowsOf(from, to)))}
      ${operators.map((one) => {
        const place = nodes.get(one.id);
        return place ? drawNode(one, place, describe(one), one.id === chosen, choose) : "";
      })}
    </svg>
  </div>`;
}

/**
 * @param {{ x: number, y: number }[]} points
 * @param {string} rows
 */
function drawEdge(points, rows) {
  const path = points
    .map(({ x, y }, at) => `${at ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`)
    .join("");
  const end = points[points.length - 1];
  const middle = points[Math.floor(points.length / 2)];
  return svg`<g class="edge">
    <path d=${path} />
    <path
      class="head"
      d=${`M${end.x - 4} ${end.y - 6}L${end.x} ${end.y}L${end.x + 4} ${end.y - 6}`} />
    ${rows ? svg`<text x=${middle.x + 8} y=${middle.y + 4}>${rows}</text>` : ""}
  </g>`;
}

/**
 * @param {Operator} operator
 * @param {{ x: number, y: number }} place
 * @param {NodeText} text
 * @param {boolean} chosen
 * @param {(operator: Operator) => void} choose
 */
function drawNode(operator, { x, y }, text, chosen, choose) {
  const [left, top] = [x - WIDTH / 2, y - HEIGHT / 2];
  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    choose(operator);
  };
  return svg`<g
    class=${chosen ? "operator is-chosen" : "operator"}
    transform="translate(${left} ${top})"
    tabindex="0"
    role="button"
    aria-pressed=${chosen ? "true" : "false"}
    @click=${() => choose(operator)}
    @keydown=${pressed}
  >
    <rect class="back" width=${WIDTH} height=${HEIGHT} rx="6" />
    <rect
      class="heat"
      width=${WIDTH} height=${HEIGHT} rx="6" fill-opacity=${(0.5 * text.heat).toFixed(3)} />
    <text class="label" x="12" y="21">${visible(text.label, 25)}</text>
    <text class="detail" x="12" y="38">${visible(text.detail, 26)}</text>
    <text class="figure" x="12" y="57">${text.left}</text>
    <text class="figure" x=${WIDTH - 12} y="57" text-anchor="end">${text.right}</text>
  </g>`;
}
