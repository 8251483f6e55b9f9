/**
 * Lays out the graph, off the page's thread: sources left, sinks right.
 *
 * @typedef {{ id: string, width: number, height: number }} Box
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

/** @param {Question} question @returns {Layout} */
function place({ turn, boxes, edges }) {
  const graph = new Graph();
  graph.setGraph({ rankdir: "LR", nodesep: 18, ranksep: 56, edgesep: 14, marginx: 12, marginy: 12 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const { id, width, height } of boxes) graph.setNode(id, { width, height });
  for (const [from, to] of edges) graph.setEdge(from, to);
  layout(graph);
  const { width = 0, height = 0 } = graph.graph();
  const centres = Object.fromEntries(
    boxes.map(({ id }) => {
      const { x, y } = graph.node(id);
      return [id, /** @type {Point} */ ([x, y])];
    }),
  );
  const widths = new Map(boxes.map((box) => [box.id, box.width]));
  const lines = edges.map(([from, to]) => {
    const points = graph.edge(from, to).points;
    const line = points.map((/** @type {{x: number, y: number}} */ p) => /** @type {Point} */ ([p.x, p.y]));
    return atSides(line, centres[from], centres[to], widths.get(from) ?? 0, widths.get(to) ?? 0);
  });
  return { turn, width, height, centres, lines };
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
