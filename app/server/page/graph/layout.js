/**
 * Asks the worker for a layout when the set of nodes or edges has changed, and keeps the last one until
 * the next is there.
 *
 * @typedef {import("./model.js").Graph} Graph
 * @typedef {import("../layout.worker.js").Layout} Layout
 * @typedef {Layout & {widths: Map<string, number>, places: Map<string, number>}} Placed
 */
import { visible } from "../words.js";

export const HEIGHT = 50;
/** Room for the longest verdict with its lag. */
const LEAST = 164;
const MOST = 224;
const AROUND = 44;
const NAME_FONT = "550 13px system-ui, sans-serif";

/** After so long a worker that has failed is made anew. */
const ASK_AGAIN_MS = 3_000;

/** A worker's address is code to the browser: only a policy that the page's own rules name may give it. */
const POLICY = /** @type {any} */ (window).trustedTypes?.createPolicy("layout", {
  createScriptURL: () => "/page/layout.worker.js",
});

export class Layouts {
  /** @param {() => void} changed  Called when a layout is there. */
  constructor(changed) {
    /** @type {Placed | undefined} */
    this.placed = undefined;
    this._changed = changed;
    this._failedAt = 0;
    this._turn = 0;
    this._asked = "";
    /** @type {{widths: Map<string, number>, places: Map<string, number>}} */
    this._next = { widths: new Map(), places: new Map() };
    /** @type {Worker | undefined} */
    this._worker = this._begin();
  }

  _begin() {
    const worker = new Worker(POLICY?.createScriptURL("") ?? "/page/layout.worker.js", {
      type: "module",
    });
    worker.onmessage = ({ data }) => {
      if (data.turn !== this._turn) return;
      this.placed = { ...data, ...this._next };
      this._changed();
    };
    // Its module may not come, as while the application is started again: asked again in a while.
    worker.onerror = () => {
      worker.terminate();
      this._worker = undefined;
      this._asked = "";
      this._failedAt = Date.now();
    };
    return worker;
  }

  /** @param {Graph} graph */
  want({ nodes, edges }) {
    const keys = edges.map(keyOf);
    const asked = JSON.stringify([nodes.map(({ id, name, kind }) => [id, name, kind]), keys]);
    if (asked === this._asked) return;
    if (!this._worker && Date.now() - this._failedAt < ASK_AGAIN_MS) return;
    this._worker ??= this._begin();
    this._asked = asked;
    const boxes = nodes.map(({ id, name, kind }) => ({ id, kind, width: widthOf(name), height: HEIGHT }));
    this._next = {
      widths: new Map(boxes.map(({ id, width }) => [id, width])),
      places: new Map(keys.map((key, place) => [key, place])),
    };
    this._worker.postMessage({
      turn: ++this._turn,
      boxes,
      edges: edges.map(({ from, to }) => [from, to]),
    });
  }
}

/** @param {{from: string, to: string}} edge */
export function keyOf({ from, to }) {
  return JSON.stringify([from, to]);
}

const canvas = document.createElement("canvas").getContext("2d");
/** @type {Map<string, number>} */
const measured = new Map();

/** @param {string} text  Its width as a node's name, in px. */
function measure(text) {
  let width = measured.get(text);
  if (width === undefined) {
    if (canvas) canvas.font = NAME_FONT;
    width = canvas?.measureText(text).width ?? text.length * 7;
    measured.set(text, width);
  }
  return width;
}

/** @param {string} name */
function widthOf(name) {
  return Math.round(Math.min(MOST, Math.max(LEAST, measure(visible(name, 60)) + AROUND)));
}

/**
 * A name cut in its middle, where names of one project differ least, to fit into a node.
 * @param {string} name
 * @param {number} width  Of the node.
 */
export function fitName(name, width) {
  const whole = visible(name, 60);
  const room = width - AROUND + 6;
  if (measure(whole) <= room) return whole;
  const letters = [...whole];
  for (let kept = letters.length - 1; kept > 3; kept--) {
    const tail = Math.floor(kept / 2);
    const cut = `${letters.slice(0, kept - tail).join("")}…${letters.slice(-tail).join("")}`;
    if (measure(cut) <= room) return cut;
  }
  return `${letters.slice(0, 3).join("")}…`;
}
