/**
 * Moves and scales what is seen of the graph, by wheel, pointer and buttons: all of it at first.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("./layout.js").Placed} Placed
 * @typedef {{x: number, y: number, scale: number}} View
 */

const LEAST = 0.15;
const MOST = 2.5;
/** Smaller, nobody can read it: then a part is shown, to be moved. */
const READABLE = 0.62;
const AROUND = 16;
/** A pointer that moves by less is a click. */
const STILL_PX = 4;

/** Room below the graph for its buttons and for what it is folded by; the style sheet has it, too. */
const TOOLS_PX = 44;

/** @returns {{width: number, height: number, left: number, top: number}} */
function box() {
  const room = document.getElementById("graph-box");
  if (!room) return new DOMRect(0, 0, 900, 420);
  const { x, y, width, height } = room.getBoundingClientRect();
  return new DOMRect(x, y, width, height - TOOLS_PX);
}

/**
 * All of it, in the middle; from the left, where the sources are, if all of it were too small to read.
 * @param {Placed} placed
 * @returns {View}
 */
export function fitted({ width, height }) {
  const room = box();
  const all = Math.min((room.width - AROUND) / width, (room.height - AROUND) / height);
  const scale = Math.min(1.4, Math.max(READABLE, all));
  return {
    x: Math.max(AROUND / 2, (room.width - width * scale) / 2),
    y: Math.max(AROUND / 2, (room.height - height * scale) / 2),
    scale,
  };
}

/**
 * @param {Page} page
 * @param {Placed} placed
 * @param {number} factor  0 to see all of it.
 */
export function zoom(page, placed, factor) {
  const { width, height } = box();
  if (factor) scaleAt(page, page.local.view ?? fitted(placed), factor, width / 2, height / 2);
  else page.local.view = undefined;
  page.redraw();
}

/**
 * Bring a place into sight if it is out of it.
 * @param {Page} page
 * @param {Placed} placed
 * @param {string} id
 */
export function bringIntoSight(page, placed, id) {
  const { x, y, scale } = page.local.view ?? fitted(placed);
  const { width, height } = box();
  const [cx, cy] = placed.centres[id];
  const [seenX, seenY] = [x + cx * scale, y + cy * scale];
  const margin = 80;
  const isSeen = seenX > margin && seenX < width - margin && seenY > 24 && seenY < height - 24;
  if (!isSeen) page.local.view = { x: width / 2 - cx * scale, y: height / 2 - cy * scale, scale };
}

/**
 * @param {Page} page
 * @param {View} view
 * @param {number} factor
 * @param {number} atX  The place that stays where it is, in px of the box.
 * @param {number} atY
 */
function scaleAt(page, { x, y, scale }, factor, atX, atY) {
  const wanted = Math.min(MOST, Math.max(LEAST, scale * factor));
  const by = wanted / scale;
  page.local.view = { x: atX - (atX - x) * by, y: atY - (atY - y) * by, scale: wanted };
}

/**
 * The view that is drawn: a handler has no other way to know what was fitted.
 * @param {SVGSVGElement} graph
 * @returns {View}
 */
function drawnView(graph) {
  const matrix = /** @type {SVGGElement} */ (graph.querySelector("g")).transform.baseVal.consolidate()?.matrix;
  return { x: matrix?.e ?? 0, y: matrix?.f ?? 0, scale: matrix?.a ?? 1 };
}

/** @param {Page} page */
export function wheeling(page) {
  page.local.wheeling ??= {
    passive: false,
    handleEvent(/** @type {WheelEvent} */ event) {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      const graph = /** @type {SVGSVGElement} */ (event.currentTarget);
      const { left, top } = box();
      const factor = Math.exp(-event.deltaY / 240);
      scaleAt(page, drawnView(graph), factor, event.clientX - left, event.clientY - top);
      page.redraw();
    },
  };
  return page.local.wheeling;
}

/** @param {Event} event */
function swallow(event) {
  event.stopPropagation();
}

/** @param {Page} page */
export function dragging(page) {
  page.local.dragging ??= (/** @type {PointerEvent} */ event) => {
    if (event.button !== 0 || event.pointerType === "touch") return;
    const graph = /** @type {SVGSVGElement} */ (event.currentTarget);
    const from = drawnView(graph);
    const [startX, startY] = [event.clientX, event.clientY];
    let moved = false;
    const move = (/** @type {PointerEvent} */ next) => {
      const [dx, dy] = [next.clientX - startX, next.clientY - startY];
      if (!moved && Math.hypot(dx, dy) < STILL_PX) return;
      moved = true;
      page.local.view = { x: from.x + dx, y: from.y + dy, scale: from.scale };
      page.redraw();
    };
    const dragged = new AbortController();
    const { signal } = dragged;
    const end = () => {
      dragged.abort();
      if (!moved) return;
      // The click that follows a drag is none. There may follow none: then the next one counts.
      window.addEventListener("click", swallow, { capture: true, once: true });
      setTimeout(() => window.removeEventListener("click", swallow, { capture: true }));
    };
    window.addEventListener("pointermove", move, { signal });
    window.addEventListener("pointerup", end, { signal });
    window.addEventListener("pointercancel", end, { signal });
  };
  return page.local.dragging;
}
