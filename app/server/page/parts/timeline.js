/**
 * The time line: what has happened and when, and the moment that is looked at. It stands at the
 * bottom of every screen that has a past.
 *
 * The events are those of the relation `events`, which has marks of the whole retained history. The
 * moment that is chosen is in the address (`at`), and all that a screen shows is as of it.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("./marks.js").Mark} Mark
 * @typedef {import("./marks.js").Bin} Bin
 *
 * @typedef {object} View
 * @property {Page} page
 * @property {string} zoom  A name of `ZOOMS`.
 * @property {Mark[]} marks
 * @property {number | undefined} markedAt  When the marks were read; undefined if they never were.
 * @property {import("../server.js").ServerError | undefined} error  Why there are no newer ones.
 * @property {Bin[]} bins
 * @property {number} from
 * @property {number} to
 * @property {number} now
 * @property {number} width  Of a bin.
 * @property {number} step  How far an arrow goes with Shift.
 */
import { html, nothing, svg } from "../vendor/lit-html/lit-html.js";
import { clockInZone, count, span, utc, visible } from "../words.js";
import { eventsOf } from "./events.js";
import {
  binsOf,
  countKinds,
  KINDS,
  lanesOf,
  marksAt,
  nextMark,
  sayKinds,
  ticksOf,
  worst,
} from "./marks.js";
import { ago, drawTime } from "./time.js";
import { toneMark } from "./verdict.js";
import { ZOOMS, labelOf, zoomOf } from "./zooms.js";

/** Pixels that a mark takes. */
const MARK_WIDTH = 13;

/** A pointer that is so far beside a mark still means it. */
const EDGE_PX = 2;
const NARROW = 720;
/** Room for the label of a moment: the margin of the page, and the widest text. */
const LABEL_PX = 60;
const FEW = 3;

/** What each kind looks like, in a box of 12 by 12. */
const SHAPES = /** @type {Record<string, unknown>} */ ({
  error: toneMark("bad"),
  recovery: toneMark("good"),
  pause: svg`<path d="M2 1.5h3v9H2zM7 1.5h3v9H7z" fill="currentColor" />`,
  start: svg`<path d="M2.5 1v10l8-5Z" fill="currentColor" />`,
  drop: svg`<path d="m2 2 8 8M10 2l-8 8" fill="none" stroke="currentColor" stroke-width="2.4" />`,
  definition: svg`<path
      d="M6 1.4 10.6 6 6 10.6 1.4 6Z" fill="none" stroke="currentColor" stroke-width="2" />`,
  action: svg`<circle cx="6" cy="6" r="4" fill="none" stroke="currentColor" stroke-width="2" />
    <circle cx="6" cy="6" r="1.4" fill="currentColor" />`,
  maintenance: svg`<path d="M6 2v8M2 6h8" fill="none" stroke="currentColor" stroke-width="2" />`,
});

/** @param {Page} page */
export function drawTimeline(page) {
  if (!page.screen || page.screen.live) return nothing;
  const view = viewOf(page);
  return html`<section class="timeline" aria-label="Time line">
    <div class="timeline-head">
      <div class="timeline-steps">
        <button
          aria-label="Previous mark"
          ?disabled=${nextMark(view.marks, page.asOf ?? view.now, -1) === undefined}
          @click=${() => stepToMark(view, -1)}
        >
          ${drawArrow("M8 2 3 6l5 4")}
        </button>
        <button
          aria-label="Next mark"
          ?disabled=${page.asOf === undefined || !view.marks.length}
          @click=${() => stepToMark(view, 1)}
        >
          ${drawArrow("m4 2 5 4-5 4")}
        </button>
        <button class="to-now" ?disabled=${page.asOf === undefined} @click=${() => choose(view)}>
          Now
        </button>
      </div>
      <p class="timeline-said">${drawMessage(view)}</p>
      <ul
        class="timeline-legend"
        aria-label="Marks that are shown"
        ?hidden=${page.asOf !== undefined || page.local.pointedBin !== undefined}
      >
        ${countKinds(view.bins.flatMap((bin) => bin.marks)).map(
          ([kind, many]) => html`<li class="mark-${kind}">
            ${drawShape(kind)}<span>${kind} ${count(many)}</span>
          </li>`,
        )}
      </ul>
      ${drawZooms(view)}
    </div>
    ${drawTrack(view)}
  </section>`;
}

/** @param {Page} page @returns {View} */
function viewOf(page) {
  const now = Math.max(Date.now(), page.server.at);
  const { marks, at: markedAt, error } = eventsOf(page);
  const zoom = zoomOf(page.zoom, marks, now);
  const { width } = ZOOMS[zoom];
  const at = page.asOf;
  // A moment that is further back than the line reaches stands in its middle.
  const to = at !== undefined && at < now - width ? at + width / 2 : now;
  const from = to - width;
  const places = Math.max(20, Math.floor((window.innerWidth - 48) / MARK_WIDTH));
  const bins = binsOf(marks, from, to, width / places);
  const drawn = { marks, markedAt, error, bins, from, to, width: width / places };
  return { page, zoom, now, ...drawn, step: width / 60 };
}

/** @param {View} view */
function drawTrack(view) {
  const { page, from, to, now, bins } = view;
  const zoom = ZOOMS[view.zoom];
  const step = window.innerWidth < NARROW ? zoom.narrow : zoom.step;
  const looked = page.asOf ?? now;
  return html`<div
    class="timeline-track"
    role="slider"
    tabindex="0"
    aria-label="Moment that is looked at"
    aria-valuemin=${Math.round(from)}
    aria-valuemax=${Math.round(to)}
    aria-valuenow=${Math.round(looked)}
    aria-valuetext=${describeMoment(view)}
    @keydown=${(/** @type {KeyboardEvent} */ event) => takeKey(page, event)}
    @click=${(/** @type {MouseEvent} */ event) => takeClick(view, event)}
    @pointermove=${(/** @type {PointerEvent} */ event) => point(view, event)}
    @pointerleave=${() => point(view)}
  >
    <svg aria-hidden="true">
      ${ticksOf(from, to, step).map(
        (at) => svg`<svg x=${percent(view, at)} class="tick">
          <title>${utc(at)}</title><path d="M0 0v42" /><text
            x=${isLast(view, at) ? -4 : 4}
            y="53"
            text-anchor=${isLast(view, at) ? "end" : "start"}
          >${labelOf(at, zoom.width)}</text>
        </svg>`,
      )}
      ${
        page.asOf === undefined
          ? nothing
          : svg`<svg x=${percent(view, page.asOf)} class="looked-at">
              <path d="M0-2v46" /><path class="head" d="m-5 49 5-7 5 7Z" />
            </svg>`
      }
      ${bins.map((bin) => drawBin(view, bin))}
      ${
        page.asOf === undefined
          ? nothing
          : svg`<svg x=${percent(view, page.asOf)}>
              <rect class="later" x="8" width="100%" height="42" />
            </svg>`
      }
    </svg>
  </div>`;
}

/**
 * @param {View} view
 * @param {Bin} bin
 */
function drawBin(view, bin) {
  const { page } = view;
  const chosen = bin.marks.some((mark) => mark.at === page.asOf);
  const lit = chosen || page.local.pointedBin === bin.from;
  const middle = Math.min(bin.from + view.width / 2, view.to);
  return svg`<svg x=${percent(view, middle)} class="bin ${lit ? "lit" : ""}">
    ${lanesOf(bin.marks).map(
      ([lane, mark]) => svg`<svg
        class="mark mark-${mark.kind}" viewBox="0 0 12 12"
        x="-6" y=${lane * 14} width="12" height="12"
        ><title>${utc(mark.at)}</title>${SHAPES[mark.kind] ?? SHAPES.maintenance}</svg>`,
    )}
  </svg>`;
}

/**
 * What has happened where one points, at the moment that is looked at, or last.
 * @param {View} view
 */
function drawMessage(view) {
  const { page, marks, bins, now } = view;
  const pointed = bins.find((bin) => bin.from === page.local.pointedBin)?.marks;
  if (view.error && !pointed) return drawError(view, view.error);
  const here = pointed ?? (page.asOf === undefined ? marks.slice(-1) : marksAt(marks, page.asOf));
  if (!here.length) return "";
  const mark = worst(here);
  const others = sayKinds(here.filter((one) => one !== mark));
  const when = pointed ? drawTime(mark.at) : ago(mark.at, now);
  return html`<span class="mark-${mark.kind}">${drawShape(mark.kind)}<b>${mark.kind}</b></span>
    <span>${when}</span>
    ${mark.object === null ? nothing : html`<b>${visible(mark.object, 60)}</b>`}
    <span class="timeline-message"
      >${visible(mark.message)}${others ? `; and ${others}` : ""}</span
    >`;
}

/**
 * That marks may be missing, and why: a line without any would pass for a quiet day.
 * @param {View} view
 * @param {import("../server.js").ServerError} error
 */
function drawError({ markedAt, now }, { message, hint }) {
  const which = markedAt === undefined ? "No marks yet" : `Marks as of ${clockInZone(markedAt, now)}`;
  return html`<span class="mark-error">${drawShape("error")}<b>${which}</b></span>
    <span class="timeline-message">${visible(message)} ${visible(hint)}</span>`;
}

/** @param {View} view */
function describeMoment({ page, marks, now }) {
  if (page.asOf === undefined) return "Now";
  const here = marksAt(marks, page.asOf).slice(0, FEW);
  const told = here.map((mark) =>
    [mark.kind, mark.object, mark.message]
      .filter(Boolean)
      .map((text) => visible(text))
      .join(", "),
  );
  return [`${clockInZone(page.asOf, now)}, ${span(now - page.asOf)} ago`, ...told].join("; ");
}

/** @param {View} view */
function drawZooms({ page, zoom }) {
  return html`<div class="timeline-zooms" role="group" aria-label="Time that is shown">
    ${Object.keys(ZOOMS).map(
      (name) => html`<button
        aria-pressed=${String(zoom === name)}
        @click=${() => {
          page.zoom = name;
          page.redraw();
        }}
      >
        ${name.replace(" ", "\u00a0")}
      </button>`,
    )}
  </div>`;
}

/**
 * Look at a moment; at the present without one. The last second is the present, too, but for a mark:
 * who steps back to one that is so new would stay where they are until its second is over.
 * @param {View} view
 * @param {number} [at]
 */
function choose({ page, now, marks }, at) {
  const past = at !== undefined && (at < now - 1_000 || marksAt(marks, at).length > 0);
  page.choose({ at: past ? String(Math.round(at)) : "" });
}

/**
 * @param {View} view
 * @param {1 | -1} direction
 */
function stepToMark(view, direction) {
  const { page, marks, now } = view;
  // Until the marks are there, the present is not what comes after a moment.
  if (!marks.length) return;
  const at = nextMark(marks, page.asOf ?? now, direction);
  if (at !== undefined || direction > 0) choose(view, at);
}

/**
 * @param {Page} page
 * @param {KeyboardEvent} event
 */
function takeKey(page, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  // As it is now, and not as it was drawn last: keys may come faster than frames.
  const view = viewOf(page);
  const { now, marks, step } = view;
  const at = page.asOf ?? now;
  const names = Object.keys(ZOOMS);
  const zoom = names.indexOf(view.zoom);
  const actions = /** @type {Record<string, () => void>} */ ({
    ArrowLeft: () => (event.shiftKey ? choose(view, at - step) : stepToMark(view, -1)),
    ArrowRight: () => (event.shiftKey ? choose(view, at + step) : stepToMark(view, 1)),
    PageDown: () => choose(view, at - step * 10),
    PageUp: () => choose(view, at + step * 10),
    Home: () => choose(view, marks[0]?.at),
    End: () => choose(view),
    Escape: () => choose(view),
    "+": () => (page.zoom = names[Math.max(0, zoom - 1)]),
    "-": () => (page.zoom = names[Math.min(names.length - 1, zoom + 1)]),
  });
  const act = actions[event.key];
  if (!act) return;
  event.preventDefault();
  event.stopPropagation();
  act();
  page.redraw();
}

/**
 * Where a mark is, its moment; anywhere else the time that is pointed at.
 * @param {View} view
 * @param {MouseEvent} event
 */
function takeClick(view, event) {
  const bin = binAt(view, event);
  choose(view, bin ? worst(bin.marks).at : timeAt(view, event));
}

/**
 * @param {View} view
 * @param {PointerEvent} [event]  None when the pointer has left.
 */
function point(view, event) {
  const pointed = event && binAt(view, event)?.from;
  if (pointed === view.page.local.pointedBin) return;
  view.page.local.pointedBin = pointed;
  view.page.redraw();
}

/**
 * @param {View} view
 * @param {MouseEvent} event
 */
function timeAt({ from, to }, event) {
  const { left, width } = box(event);
  const share = Math.min(1, Math.max(0, (event.clientX - left) / width));
  return from + share * (to - from);
}

/**
 * The bin under the pointer, if there is one.
 * @param {View} view
 * @param {MouseEvent} event
 */
function binAt(view, event) {
  const { width } = box(event);
  // A mark stands in the middle of its piece of time: what happened at the ends of it is as near.
  const near = ((MARK_WIDTH / 2 + EDGE_PX) * (view.to - view.from)) / width;
  const at = timeAt(view, event);
  /** @param {Bin} bin */
  const distance = (bin) => Math.abs(bin.from + view.width / 2 - at);
  const close = view.bins.filter((bin) => distance(bin) <= near);
  return close.sort((a, b) => distance(a) - distance(b))[0];
}

/** @param {MouseEvent} event  Of the drawing: the track has a margin inside. */
function box(event) {
  const track = /** @type {HTMLElement} */ (event.currentTarget);
  return /** @type {Element} */ (track.querySelector("svg")).getBoundingClientRect();
}

/**
 * @param {View} view
 * @param {number} at
 */
function percent({ from, to }, at) {
  return `${(((at - from) / (to - from)) * 100).toFixed(3)}%`;
}

/**
 * True if a label to the right of a moment would reach beyond the window.
 * @param {View} view
 * @param {number} at
 */
function isLast({ from, to }, at) {
  return ((to - at) / (to - from)) * window.innerWidth < LABEL_PX;
}

/** @param {string} kind */
function drawShape(kind) {
  return html`<svg class="shape" viewBox="0 0 12 12" aria-hidden="true">
    ${SHAPES[kind] ?? SHAPES.maintenance}
  </svg>`;
}

/** @param {string} path */
function drawArrow(path) {
  return html`<svg class="shape" viewBox="0 0 12 12" aria-hidden="true">
    <path d=${path} fill="none" stroke="currentColor" stroke-width="2" />
  </svg>`;
}
