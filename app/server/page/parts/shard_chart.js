/**
 * Draws a shard on its axis of time: holds at what they still need, batches by level, and maintenance.
 *
 * What lies before the since is drawn in a strip at the left: a batch that begins there has been
 * merged up to the since, and its own times are gone.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../store.js").Row} Row
 * @typedef {import("./axis.js").Axis} Axis
 *
 * @typedef {object} Drawn
 * @property {Row} shard
 * @property {Row[]} batches
 * @property {Row[]} holds
 * @property {Row[]} maintenance
 * @property {number} now  Time of the newest rows, in ms.
 *
 * @typedef {object} Item  Something that can be pointed at.
 * @property {string} key
 * @property {string} text  All about it.
 */
import { html, nothing, svg } from "../vendor/lit-html/lit-html.js";
import { countOf, moment, size, span, utc, visible, zone } from "../words.js";
import { isClockTime, labels, makeAxis, place, readableSpacing } from "./axis.js";
import { drawChoice } from "./choice.js";
import { measured } from "./measure.js";
import { frontierText } from "./frontier.js";
import { ROUND_KINDS, ROUND_PATHS, gatherRounds, roundKind, roundMark } from "./shard_rounds.js";
import { batchKey, batchText, holdText, roundsText } from "./shard_words.js";

const HEAD = 24;
const LEVEL = 24;
const HOLD = 30;
const FOOT = 36;
const GAP = 14;

/** Width of a letter of the axis, with some to spare, in px. */
const LETTER = 6.4;

const SPACINGS = /** @type {[string, string][]} */ ([
  ["time", "True to time"],
  ["batch", "By batch"],
]);

/** Holds that have a line of their own; the others are in the table. */
const HOLDS_MAX = 8;

/**
 * @param {Page} page
 * @param {Drawn} drawn
 */
export function drawShardChart(page, drawn) {
  const width = /** @type {number} */ (page.local.chart ?? 0);
  const bounds = rangeOf(drawn);
  const readable = readableSpacing(stretchesOf(drawn), bounds.from, bounds.to, width - 100);
  const chosen = page.query.get("spacing");
  const spacing = chosen === "time" || chosen === "batch" ? chosen : readable;
  return html`<section class="card" aria-labelledby="chart-title">
    <header class="card-head">
      <h2 id="chart-title">From since to upper</h2>
      ${drawChoice("Spacing of the axis", SPACINGS, spacing, (value) =>
        page.choose({ spacing: value === readable ? "" : value }),
      )}
    </header>
    <div class="chart-room" ${measured(page, "chart")}>
      ${width ? drawPicture(page, drawn, bounds, spacing, width) : nothing}
    </div>
    ${drawLegend(drawn)}
  </section>`;
}

/**
 * The times that the axis goes from and to. NULL is the end of all times, which has no place.
 * @param {Drawn} drawn
 */
function rangeOf({ shard, batches, holds }) {
  // Of times that are text, since a number cannot hold them: places need not be exact.
  const known = [
    ...batches.flatMap(({ lower, upper }) => [lower, upper]),
    ...holds.map((hold) => hold.since),
    shard.since,
    shard.upper,
  ].filter((time) => time != null);
  const to = Number(shard.upper ?? Math.max(0, ...known));
  return { from: Math.min(shard.since ?? to, to), to };
}

/** @param {Drawn} drawn */
function stretchesOf({ batches, shard }) {
  return batches.map(({ lower, upper }) => ({ lower, upper: upper ?? shard.upper ?? Infinity }));
}

/**
 * @param {Page} page
 * @param {Drawn} drawn
 * @param {{ from: number, to: number }} range
 * @param {import("./axis.js").Spacing} spacing
 * @param {number} width
 */
function drawPicture(page, drawn, { from, to }, spacing, width) {
  const { batches, maintenance } = drawn;
  const isNarrow = width < 560;
  const margin = isNarrow ? 40 : 124;
  const strip = batches.some((batch) => batch.lower < from) ? (isNarrow ? 18 : 40) : 0;
  const ends = batches.flatMap(({ lower, upper }) => [lower, upper ?? to]);
  const needed = drawn.holds.flatMap(({ since }) => (since == null ? [] : [since]));
  const axis = makeAxis({
    spacing,
    left: margin + strip,
    right: width - 10,
    from,
    to,
    bounds: [...ends, ...needed],
  });
  const holds = shownHolds(drawn.holds);
  // What is empty has no size class: its own line, below the smallest.
  const levels = [...new Set(batches.map(({ level }) => level ?? -1))].sort((a, b) => b - a);
  const rounds = maintenance.filter((round) => (moment(round.occurred_at) ?? from) >= from);
  const marks = gatherRounds(axis, rounds);
  const holdsTop = HEAD + GAP;
  const levelsTop = holdsTop + holds.length * HOLD + (holds.length ? GAP : 0);
  const roundsTop = levelsTop + levels.length * LEVEL + GAP;
  const height = roundsTop + FOOT;
  const items = [
    ...holds.map((hold) => ({ key: `hold ${hold.name}`, text: holdText(hold) })),
    ...batches.map((batch) => ({ key: batchKey(batch), text: batchText(batch, drawn.shard.since ?? from) })),
    ...marks.map(({ key, rounds: some }) => ({ key, text: roundsText(some) })),
  ];
  const pointed = items.find(({ key }) => key === page.local.pointed);
  const frame = { page, axis, width, margin, strip, bottom: roundsTop - GAP / 2 };
  return html`<svg
      class="axis"
      width=${width}
      height=${height}
      viewBox="0 0 ${width} ${height}"
      role="img"
      tabindex="0"
      aria-label=${
        `${countOf(batches.length, "batch", "batches")} in ${countOf(levels.length, "level")}, ` +
        `${countOf(drawn.holds.length, "hold")}, ` +
        `${countOf(rounds.length, "round")} of maintenance, from ${frontierText(from)} to ${frontierText(to)}; ` +
        "the tables below have the same. Arrow keys go from one to the next."
      }
      @pointerover=${(/** @type {Event} */ event) => point(page, event)}
      @keydown=${(/** @type {KeyboardEvent} */ event) => step(page, items, event)}
    >
      ${strip ? drawStrip(frame) : nothing} ${drawZone(frame)} ${drawTimeLabels(axis, frame.bottom)}
      ${holds.map((hold, at) => drawHold(frame, hold, holdsTop + at * HOLD, isNarrow))}
      ${levels.map((level, at) =>
        drawLevel(
          frame,
          level,
          batches.filter((batch) => (batch.level ?? -1) === level),
          levelsTop + at * LEVEL,
          isNarrow,
        ),
      )}
      ${marks.map((mark) => roundMark(page, mark, roundsTop + 4))}
      ${
        rounds.length && !isNarrow
          ? svg`<text class="row-name" x="0" y=${roundsTop + 15}>maintenance</text>`
          : nothing
      }
    </svg>
    <p class="readout">${pointed?.text ?? describeRest(drawn, holds, rounds)}</p>`;
}

/**
 * @param {Drawn} drawn
 * @param {Row[]} shown
 * @param {Row[]} rounds
 */
function describeRest({ holds, maintenance }, shown, rounds) {
  const rest = [];
  if (holds.length > shown.length) rest.push(countOf(holds.length - shown.length, "more hold"));
  if (maintenance.length > rounds.length)
    rest.push(`${countOf(maintenance.length - rounds.length, "earlier round")} of maintenance`);
  const more = rest.length ? ` The tables have ${rest.join(" and ")}.` : "";
  return `Point at a batch, a hold or a mark to read about it.${more}`;
}

/**
 * Those that keep the most back come first; what holds nothing has no place.
 * @param {Row[]} holds
 */
function shownHolds(holds) {
  return holds
    .filter((hold) => hold.since != null)
    .sort(
      (a, b) => (b.gain ?? 0) - (a.gain ?? 0) || a.since - b.since || (a.name < b.name ? -1 : 1),
    )
    .slice(0, HOLDS_MAX);
}

/**
 * @typedef {{ page: Page, axis: Axis, width: number, margin: number, strip: number,
 *   bottom: number }} Frame
 */

/** @param {Frame} frame */
function drawStrip({ margin, strip, bottom }) {
  return svg`<rect class="earlier" x=${margin} y=${HEAD} width=${strip - 3} height=${bottom - HEAD} />`;
}

/**
 * The zone of the axis's times, before them, unless a narrow margin has no room for it.
 * @param {Frame} frame
 */
function drawZone({ axis, margin }) {
  if (!isClockTime(axis.to)) return nothing;
  const name = zone(axis.to);
  if (name.length * LETTER > margin) return nothing;
  return svg`<text class="row-name" x="0" y=${HEAD - 11}>${name}</text>`;
}

/**
 * @param {Axis} axis
 * @param {number} bottom
 */
function drawTimeLabels(axis, bottom) {
  return labels(axis, LETTER).map(
    ({
      x,
      start,
      text,
      time,
    }) => svg`<line class="tick" x1=${x} x2=${x} y1=${HEAD - 6} y2=${bottom} />
      <text class="tick-text" x=${start} y=${HEAD - 11}>${text}<title>${isClockTime(time) ? utc(time) : frontierText(time)}</title></text>`,
  );
}

/**
 * @param {Frame} frame
 * @param {Row} hold
 * @param {number} y
 * @param {boolean} isNarrow
 */
function drawHold({ page, axis, margin, bottom }, hold, y, isNarrow) {
  const x = place(axis, hold.since);
  const middle = y + HOLD / 2;
  const isLate = x > axis.left + (axis.right - axis.left) * 0.55;
  const end = hold.gain ? place(axis, Number(hold.since) + Number(hold.gain)) : x;
  const key = `hold ${hold.name}`;
  const said = isNarrow
    ? visible(hold.owner || hold.name, 18)
    : `${visible(hold.owner || hold.name, 44)}${describeKept(hold)}`;
  return svg`<g class="hold ${hold.kind} ${key === page.local.pointed ? "pointed" : ""}" data-key=${key}>
    <rect class="reach" x=${margin} y=${y} width=${axis.right - margin} height=${HOLD} />
    <line class="needs" x1=${x} x2=${axis.right} y1=${middle + 9} y2=${middle + 9} />
    ${
      end > x
        ? svg`<rect class="kept" x=${x} y=${middle + 6} width=${Math.max(end - x, 3)} height="6" rx="1" />`
        : nothing
    }
    <line class="guide" x1=${x} x2=${x} y1=${middle + 9} y2=${bottom} />
    <path class="at" d="M${x} ${middle + 3.5}l5.5 5.5l-5.5 5.5l-5.5 -5.5z" />
    <text x=${isLate ? x - 2 : x + 2} y=${middle - 1} text-anchor=${isLate ? "end" : "start"}
      >${said}</text>
    ${isNarrow ? nothing : svg`<text class="row-name" x="0" y=${middle + 8}>${hold.kind}</text>`}
  </g>`;
}

/** @param {Row} hold */
function describeKept({ gain, only_size: bytes }) {
  const kept = [gain ? span(gain) : "", bytes ? size(bytes) : ""].filter(Boolean);
  return kept.length ? ` · alone keeps ${kept.join(", ")}` : "";
}

/**
 * @param {Frame} frame
 * @param {number} level
 * @param {Row[]} batches
 * @param {number} y
 * @param {boolean} isNarrow
 */
function drawLevel({ page, axis, margin }, level, batches, y, isNarrow) {
  const bytes = batches.reduce((sum, batch) => sum + (batch.size ?? 0), 0);
  const name = level < 0 ? "empty" : isNarrow ? `L${level}` : `level ${level}`;
  return svg`<text class="row-name" x="0" y=${y + 15}>${name}</text>
    ${isNarrow || level < 0 ? nothing : svg`<text class="row-size" x=${margin - 12} y=${y + 15} text-anchor="end">${size(bytes)}</text>`}
    <line class="rail" x1=${margin} x2=${axis.right} y1=${y + LEVEL - 1.5} y2=${y + LEVEL - 1.5} />
    ${batches.map((batch) => drawBatch(page, axis, margin, batch, y))}`;
}

/**
 * @param {Page} page
 * @param {Axis} axis
 * @param {number} margin
 * @param {Row} batch
 * @param {number} y
 */
function drawBatch(page, axis, margin, batch, y) {
  const x = batch.lower < axis.from ? margin : place(axis, batch.lower);
  const isBefore = batch.upper != null && batch.upper <= axis.from;
  const end = isBefore ? axis.left - 3 : place(axis, batch.upper ?? axis.to);
  const wide = Math.max(end - x - 1, 2);
  const key = batchKey(batch);
  const kind = batch.parts ? "" : "hollow";
  return svg`<g class="batch ${kind} ${key === page.local.pointed ? "pointed" : ""}" data-key=${key}>
    <rect x=${x} y=${y + 2} width=${wide} height=${LEVEL - 5} rx=${Math.min(3, wide / 3)} />
    ${
      wide > 58 && batch.parts
        ? svg`<text x=${x + wide / 2} y=${y + 15.5} text-anchor="middle">${size(batch.size)}</text>`
        : nothing
    }
  </g>`;
}

/** @param {Drawn} drawn */
function drawLegend({ batches, holds, maintenance }) {
  const kinds = ROUND_KINDS.filter((kind) =>
    maintenance.some((round) => roundKind(round) === kind),
  );
  return html`<ul class="legend">
    ${batches.length ? html`<li>${drawSwatch("batch", "M0 2h14v10h-14z")} batch</li>` : nothing}
    ${
      batches.some((batch) => !batch.parts)
        ? html`<li>${drawSwatch("batch hollow", "M1 2h12v10h-12z")} batch without updates</li>`
        : nothing
    }
    ${
      holds.some((hold) => hold.kind === "hold")
        ? html`<li>
            ${drawSwatch("hold", "M7 1.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z")} hold, never ends by itself
          </li>`
        : nothing
    }
    ${
      holds.some((hold) => hold.kind === "lease")
        ? html`<li>${drawSwatch("lease", "M7 1.5l5.5 5.5l-5.5 5.5l-5.5 -5.5z")} lease</li>`
        : nothing
    }
    ${
      holds.some((hold) => hold.gain)
        ? html`<li>${drawSwatch("kept", "M0 4h14v6h-14z")} history kept for it alone</li>`
        : nothing
    }
    ${kinds.map((kind) => html`<li>${drawSwatch(`round ${kind}`, ROUND_PATHS[kind](7, 7))} ${kind}</li>`)}
  </ul>`;
}

/**
 * @param {string} kind
 * @param {string} path
 */
function drawSwatch(kind, path) {
  return html`<svg class="swatch ${kind}" width="14" height="14" aria-hidden="true">
    <path d=${path} />
  </svg>`;
}

/**
 * @param {Page} page
 * @param {Event} event
 */
function point(page, event) {
  const found = /** @type {Element} */ (event.target).closest("[data-key]");
  page.local.pointed = found?.getAttribute("data-key") ?? undefined;
  page.redraw();
}

/**
 * @param {Page} page
 * @param {Item[]} items
 * @param {KeyboardEvent} event
 */
function step(page, items, event) {
  const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
  if (!by || !items.length) return;
  event.preventDefault();
  const at = items.findIndex(({ key }) => key === page.local.pointed);
  const next = at < 0 && by < 0 ? items.length - 1 : (at + by + items.length) % items.length;
  page.local.pointed = items[next].key;
  page.redraw();
}
