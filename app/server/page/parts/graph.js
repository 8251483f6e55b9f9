/**
 * The graph, drawn: nodes at their places, edges with what goes through, and a path that is lit.
 *
 * One node at a time is reached by Tab, the others from it by arrows. Wheel and fingers scroll the page
 * as anywhere; with Ctrl, or pinched, they zoom.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../graph/model.js").Graph} Graph
 * @typedef {import("../graph/model.js").Node} Node
 * @typedef {import("../graph/model.js").Edge} Edge
 * @typedef {import("../graph/layout.js").Placed} Placed
 *
 * @typedef {{edge: Edge, line: import("../layout.worker.js").Point[]}} Laid
 *
 * @typedef {object} Drawn
 * @property {Graph} graph
 * @property {Placed} placed
 * @property {string} chosen  Id of a node.
 * @property {string} blamed  Id of a node; "" if it is the chosen one, or none.
 * @property {Set<string>} path  Ids of nodes on the slowest path to the chosen one.
 * @property {(edge: Edge) => number | undefined} rate  In rows a second.
 * @property {(id: string) => void} choose
 */
import { html, nothing, svg } from "../vendor/lit-html/lit-html.js";
import { repeat } from "../vendor/lit-html/directives/repeat.js";
import { HEIGHT, fitName, keyOf } from "../graph/layout.js";
import { takeGraphKey } from "../graph/keys.js";
import { dragging, fitted, wheeling, zoom } from "../graph/view.js";
import { late, visible } from "../words.js";
import { kindMark } from "./object_link.js";
import { sayRate } from "./rates.js";
import { toneMark } from "./verdict.js";

/**
 * All edges are labelled unless there are more: their numbers would cover each other. Then those of the
 * lit path are, and of the nodes that are chosen, or pointed at.
 */
const LABELS_MAX = 40;

/**
 * @param {Page} page
 * @param {Drawn} drawn
 */
export function drawGraph(page, drawn) {
  const { graph, placed, path } = drawn;
  const view = page.local.view ?? fitted(placed);
  const edges = graph.edges
    .map((edge) => ({ edge, line: placed.lines[placed.places.get(keyOf(edge)) ?? -1] }))
    .filter(({ line }) => line);
  const isOnPath = (/** @type {Edge} */ { from, to }) => path.has(from) && path.has(to);
  // What is lit is drawn last, above all others.
  edges.sort((a, b) => Number(isOnPath(a.edge)) - Number(isOnPath(b.edge)));
  const nodes = graph.nodes.filter(({ id }) => placed.centres[id]);
  const first = drawn.chosen || nodes[0]?.id;
  const { pointed } = page.local;
  const isLabelled = (/** @type {Edge} */ edge) =>
    edges.length <= LABELS_MAX ||
    isOnPath(edge) ||
    [edge.from, edge.to].some((id) => id === drawn.chosen || id === pointed);
  const reached = placed.centres[page.local.reached] ? page.local.reached : first;
  return html`<svg
      id="graph"
      class="graph"
      role="group"
      aria-label="Graph of the objects: sources left, sinks right. The list after it says the same."
      @pointerdown=${dragging(page)}
      @wheel=${wheeling(page)}
      @keydown=${(/** @type {KeyboardEvent} */ event) =>
        takeGraphKey(page, drawn, nodeOf(event) ?? reached, event)}
    >
      <defs>
        ${["", "lit"].map(
          (style) => svg`<marker id="arrow${style}" class="arrow-head ${style}" viewBox="0 0 8 8"
            refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto-start-reverse">
            <path d="M0 .6 7.4 4 0 7.4Z" /></marker>`,
        )}
      </defs>
      <g transform="translate(${view.x} ${view.y}) scale(${view.scale})">
        ${repeat(
          edges,
          (/** @type {Laid} */ { edge }) => keyOf(edge),
          (/** @type {Laid} */ { edge, line }) => drawEdge(drawn, edge, line, isOnPath(edge), isLabelled(edge)),
        )}
        ${repeat(
          nodes,
          (/** @type {Node} */ { id }) => id,
          (/** @type {Node} */ node) => drawNode(page, drawn, node, node.id === reached),
        )}
      </g>
    </svg>
    <div class="graph-tools">
      <button aria-label="Larger" @click=${() => zoom(page, placed, 1.25)}>+</button>
      <button aria-label="Smaller" @click=${() => zoom(page, placed, 0.8)}>−</button>
      <button aria-label="Fit all of it" @click=${() => zoom(page, placed, 0)}>Fit</button>
    </div>`;
}

/**
 * @param {Drawn} drawn
 * @param {Edge} edge
 * @param {import("../layout.worker.js").Point[]} line
 * @param {boolean} isLit
 * @param {boolean} isLabelled
 */
function drawEdge({ rate }, edge, line, isLit, isLabelled) {
  const rows = rate(edge);
  const [x, y] = middle(line);
  const moving = rows !== undefined && rows >= 0.05;
  const label = moving && isLabelled ? `${sayRate(rows)}/s` : "";
  return svg`<g class="edge ${isLit ? "lit" : ""} ${moving || rows === undefined ? "" : "still"}">
    <path d=${curve(line)} marker-end="url(#arrow${isLit ? "lit" : ""})" />
    <title>${visible(edge.from, 60)} → ${visible(edge.to, 60)}: ${
      rows === undefined ? "rows not counted" : `${sayRate(rows)}\u00a0rows/s`
    }</title>
    <text x=${x} y=${y - 4} text-anchor="middle">${label}</text>
  </g>`;
}

/**
 * @param {Page} page
 * @param {Drawn} drawn
 * @param {Node} node
 * @param {boolean} isReached  It is the one that Tab goes to.
 */
function drawNode(page, drawn, node, isReached) {
  const { id, name, kind, tone, verdict, lag, members } = node;
  const [x, y] = drawn.placed.centres[id];
  const width = drawn.placed.widths.get(id) ?? 0;
  const isChosen = id === drawn.chosen;
  const classes = [
    `node tone-${tone}`,
    isChosen ? "chosen" : "",
    drawn.path.has(id) ? "lit" : "",
    id === drawn.blamed ? "blamed" : "",
    members.length ? "folded" : "",
  ];
  const behind = lag == null ? "" : late(lag);
  const shown = fitName(name, width);
  const word = members.length ? worst(verdict) : verdict;
  const short = largestUnit(behind);
  const choose = () => {
    page.local.reached = id;
    drawn.choose(id);
  };
  const isCrowded = drawn.graph.edges.length > LABELS_MAX;
  const point = (/** @type {string | undefined} */ at) => {
    page.local.pointed = at;
    if (isCrowded) page.redraw();
  };
  return svg`<g
    class=${classes.join(" ")}
    data-node=${id}
    role="button"
    tabindex=${isReached ? 0 : -1}
    aria-pressed=${isChosen}
    aria-label=${heardName(node, shown, word, short)}
    transform="translate(${x - width / 2} ${y - HEIGHT / 2})"
    @click=${choose}
    @pointerenter=${() => point(id)}
    @pointerleave=${() => point(undefined)}
  >
    <title>${visible(name, 200)}: ${verdict}${behind ? `, ${behind} behind the clock` : ""}</title>
    ${members.length ? svg`<rect class="behind" x="4" y="4" width=${width} height=${HEIGHT} rx="8" />` : nothing}
    <rect class="card" width=${width} height=${HEIGHT} rx="8" />
    <g class="kind-mark" transform="translate(11 8)">${kindMark(kind)}</g>
    <text class="name" x="32" y="19.5">${shown}</text>
    <g class="mark" transform="translate(12 29.5)">${toneMark(tone)}</g>
    <text class="word" x="30" y="39.5">${word}</text>
    <text class="lag" x=${width - 12} y="39.5" text-anchor="end">${short}</text>
  </g>`;
}

/**
 * The node that has the focus. What was reached when the graph was drawn may be another one: keys can
 * come faster than frames.
 * @param {KeyboardEvent} event
 * @returns {string | undefined}
 */
function nodeOf({ target }) {
  const node = /** @type {Element} */ (target).closest("[data-node]");
  return /** @type {SVGElement | null} */ (node)?.dataset.node;
}

/**
 * What a node is called: what is seen of it, so that it can be said to be chosen, and then the rest.
 * @param {Node} node
 * @param {string} shown  Of its name.
 * @param {string} word
 * @param {string} lag
 */
function heardName({ name, kind, verdict, members }, shown, word, lag) {
  const whole = visible(name, 80);
  const rest = [
    lag ? " behind" : "",
    `, ${kind}`,
    members.length ? `, ${verdict}` : "",
    shown === whole ? "" : `, ${whole}`,
  ];
  return `${shown}, ${word}${lag ? `, ${lag}` : ""}${rest.join("")}`;
}

/** @param {string} verdicts  Of a group: the first is the one that a person looks for. */
function worst(verdicts) {
  const [first, ...more] = verdicts.split(", ");
  return more.length ? `${first}, …` : first;
}

/** @param {string} text  A span: of two units the first, there is no room for more. */
function largestUnit(text) {
  // Of number, unit, number and unit, which no-break spaces hold together.
  return text.split("\u00a0").slice(0, 2).join("\u00a0");
}

/** @param {[number, number][]} line  Through its points, level at each. */
function curve(line) {
  let path = `M${line[0][0]} ${line[0][1]}`;
  for (let at = 1; at < line.length; at++) {
    const [[x0, y0], [x1, y1]] = [line[at - 1], line[at]];
    const half = (x0 + x1) / 2;
    path += `C${half} ${y0} ${half} ${y1} ${x1} ${y1}`;
  }
  return path;
}

/** @param {[number, number][]} line */
function middle(line) {
  const at = Math.floor((line.length - 1) / 2);
  if (line.length % 2) return line[at];
  return [(line[at][0] + line[at + 1][0]) / 2, (line[at][1] + line[at + 1][1]) / 2];
}
