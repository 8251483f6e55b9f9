/**
 * A picture of where a step's time goes, as nested rectangles: the width is the share of the time,
 * what stands below is a part of what stands above, or hands its rows to it.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("./object/operators.js").Operator} Operator
 *
 * @typedef {object} Block
 * @property {Operator} operator
 * @property {string} label
 * @property {number} from  Left end, 0 to 1.
 * @property {number} share  Width, 0 to 1: its own time and that of what stands below.
 * @property {number} own  Share of its own time.
 * @property {number} depth
 */
import { html, svg } from "../vendor/lit-html/lit-html.js";
import { percent, visible } from "../words.js";

const ROW = 26;

/** Narrower ones, as a share of the width, are not drawn; or have no label. */
const THIN = 0.002;
const LABELLED = 0.035;

/**
 * @param {Operator[]} operators
 * @param {(operator: Operator) => number | undefined} timeOf  In ms.
 * @param {(operator: Operator) => string} labelOf
 * @returns {Block[]}
 */
export function blocksOf(operators, timeOf, labelOf) {
  const whole = operators.find((one) => one.parent === undefined);
  if (!whole) return [];
  const phases = operators.filter((one) => one.parent === whole.id && one.lir === undefined);
  const phased = phases.reduce((sum, one) => sum + (timeOf(one) ?? 0), 0);
  const total = Math.max(timeOf(whole) ?? 0, phased);
  if (!total) return [];
  /** @type {Block[]} */
  const blocks = [
    { operator: whole, label: "step", from: 0, share: 1, own: 1 - phased / total, depth: 0 },
  ];
  let from = 0;
  for (const phase of phases) {
    const share = (timeOf(phase) ?? 0) / total;
    if (!share) continue;
    const inside = phase.name === "addBatch" ? nest(operators, timeOf, labelOf, from, share) : [];
    const own = inside.length ? 0 : share;
    blocks.push({ operator: phase, label: labelOf(phase), from, share, own, depth: 1 }, ...inside);
    from += share;
  }
  return blocks;
}

/**
 * Operators that rows go through, within the phase that computes: the last one above, each over
 * those that it takes rows from. One that two others read stands below the first of them.
 * @param {Operator[]} operators
 * @param {(operator: Operator) => number | undefined} timeOf
 * @param {(operator: Operator) => string} labelOf
 * @param {number} from
 * @param {number} share
 */
function nest(operators, timeOf, labelOf, from, share) {
  const nodes = new Map(
    operators.filter((one) => one.lir !== undefined).map((one) => [one.id, one]),
  );
  const tasks = [...nodes.values()].reduce((sum, one) => sum + (timeOf(one) ?? 0), 0);
  if (!tasks) return [];
  const read = new Set([...nodes.values()].flatMap((one) => one.inputs));
  const seen = new Set();
  /** @type {Block[]} */
  const blocks = [];
  /**
   * @param {number} id
   * @param {number} left
   * @param {number} depth
   * @returns {number} Its share.
   */
  const place = (id, left, depth) => {
    const operator = nodes.get(id);
    if (!operator || seen.has(id)) return 0;
    seen.add(id);
    const own = ((timeOf(operator) ?? 0) / tasks) * share;
    const block = { operator, label: labelOf(operator), from: left, share: 0, own, depth };
    blocks.push(block);
    let below = 0;
    for (const input of operator.inputs) below += place(input, left + below, depth + 1);
    block.share = own + below;
    return block.share;
  };
  let left = from;
  for (const node of [...nodes.values()].reverse())
    if (!read.has(node.id)) left += place(node.id, left, 2);
  return blocks.filter((one) => one.share > 0);
}

/**
 * @param {Block[]} blocks
 * @param {number | undefined} chosen  Id of the operator that was chosen.
 * @param {(operator: Operator) => void} choose
 */
export function drawFlame(blocks, chosen, choose) {
  const depth = Math.max(0, ...blocks.map((one) => one.depth)) + 1;
  const most = Math.max(...blocks.map((one) => one.own));
  return html`<svg class="flame" width="100%" height=${depth * ROW} aria-hidden="true">
    ${blocks
      .filter((one) => one.share > THIN)
      .map((one) => drawBlock(one, most, one.operator.id === chosen, choose))}
  </svg>`;
}

/**
 * @param {Block} block
 * @param {number} most
 * @param {boolean} chosen
 * @param {(operator: Operator) => void} choose
 */
function drawBlock({ operator, label, from, share, own, depth }, most, chosen, choose) {
  const at = (/** @type {number} */ part) => `${(100 * part).toFixed(3)}%`;
  // An inner picture cuts what is too long for it; places are shares, so text is never squeezed.
  return svg`<svg
    class=${chosen ? "block is-chosen" : "block"}
    x=${at(from)}
    y=${depth * ROW}
    width=${at(share)}
    height=${ROW}
    @click=${() => choose(operator)}
  >
    <title>${visible(label, 300)}: ${percent(share)} of the time, ${percent(
        own,
      )} of it itself</title>
    <rect x="0.5" y="0.5" width="100%" height=${ROW - 1} rx="3" fill-opacity=${heat(own, most)} />
    ${share > LABELLED
      ? svg`<text x="8" y="17">${visible(label, 120)} ${percent(share)}</text>` : ""}
  </svg>`;
}

/**
 * How strong the colour is: by an operator's own time, so that the largest one is seen.
 * @param {number} own
 * @param {number} most
 */
export function heat(own, most) {
  return (0.1 + 0.5 * (most ? own / most : 0)).toFixed(3);
}
