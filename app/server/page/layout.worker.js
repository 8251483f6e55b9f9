/**
 * Lays out the graph, off the page's thread: sources left, sinks right.
 *
 * @typedef {{ id: string, kind: string, width: number, height: number }} Box
 * @typedef {{ turn: number, boxes: Box[], edges: [string, string][] }} Question
 * @typedef {[number, number]} Point
 *
 * @typedef {object} Layout
 * @property {number} turn  Of its question.
 * @property {number} width
 * @property {number} height
 * @property {Record<string, Point>} centres  By id.
 * @property {Point[][]} lines  Of each edge, in their order: from its sender to its receiver.
 */
import { Graph, layout } from "./vendor/dagre/dagre.esm.js";

const MARGIN = 12;

/** Kinds that nothing reads: rows end there. */
const ENDS = ["sink", "index"];

/** @param {Question} question @returns {Layout} */
function place({ turn, boxes, edges }) {
  const graph = new Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 56, edgesep: 14, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  // Keys of our own: a name may be anything, also what dagre or we call a node of no box.
  const keys = new Map(boxes.map(({ id }, at) => [id, `box${at}`]));
  const keyOf = (/** @type {string} */ id) => keys.get(id) ?? "";
  for (const { id, width, height } of boxes) graph.setNode(keyOf(id), { width, height });
  holdColumns(graph, boxes, edges, keyOf);
  layout(graph);
  const placed = boxes.map(({ id }) => graph.node(keyOf(id)));
  // Before the first column and after the last one there is room for what has held them.
  const left = Math.min(...placed.map(({ x, width }) => x - width / 2)) - MARGIN;
  const right = Math.max(...placed.map(({ x, width }) => x + width / 2)) + MARGIN;
  const { height = 0 } = graph.graph();
  const centres = Object.fromEntries(
    boxes.map(({ id }, at) => [id, /** @type {Point} */ ([placed[at].x - left, placed[at].y])]),
  );
  const widths = new Map(boxes.map((box) => [box.id, box.width]));
  const lines = edges.map(([from, to]) => {
    const points = graph.edge(keyOf(from), keyOf(to)).points;
    const line = points.map(
      (/** @type {{x: number, y: number}} */ p) => /** @type {Point} */ ([p.x - left, p.y]),
    );
    return atSides(line, centres[from], centres[to], widths.get(from) ?? 0, widths.get(to) ?? 0);
  });
  return { turn, width: boxes.length ? right - left : 0, height, centres, lines };
}

/**
 * Hold all sources in the first column and all ends in the last one, by nodes without a size before
 * and after them. dagre makes the sum of the lengths of edges, by their weights, as small as it can:
 * an edge that weighs more than all others together has the least length. What else begins or ends
 * is between them, wherever its own edges want it, and is held so lightly that these decide.
 * @param {any} graph
 * @param {Box[]} boxes
 * @param {[string, string][]} edges
 * @param {(id: string) => string} keyOf
 */
function holdColumns(graph, boxes, edges, keyOf) {
  if (!boxes.length) return;
  const receivers = new Set(edges.map(([, to]) => to));
  const senders = new Set(edges.map(([from]) => from));
  const own = 2 * boxes.length + 1;
  for (const [from, to] of edges) graph.setEdge(keyOf(from), keyOf(to), { weight: own });
  const firm = own * (edges.length + 1);
  for (const holder of ["start", "end"]) graph.setNode(holder, { width: 0, height: 0 });
  for (const { id, kind } of boxes) {
    if (kind === "source") graph.setEdge("start", keyOf(id), { weight: firm });
    else if (!receivers.has(id)) graph.setEdge("start", keyOf(id), { weight: 1 });
    if (ENDS.includes(kind)) graph.setEdge(keyOf(id), "end", { weight: firm });
    else if (!senders.has(id)) graph.setEdge(keyOf(id), "end", { weight: 1 });
  }
}

/**
 * A line that leaves a box in the middle of its right side and comes to one in that of its left side.
 * One that goes back, in a circle of groups, stays as it is.
 * @param {Point[]} line
 * @param {Point} from
 * @param {Point} to
 * @param {number} fromWidth
 * @param {number} toWidth
 * @returns {Point[]}
 */
function atSides(line, from, to, fromWidth, toWidth) {
  const [start, end] = [from[0] + fromWidth / 2, to[0] - toWidth / 2];
  if (start >= end) return line;
  return [[start, from[1]], ...line.slice(1, -1), [end, to[1]]];
}

self.onmessage = (/** @type {MessageEvent<Question>} */ event) => self.postMessage(place(event.data));
