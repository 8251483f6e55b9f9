/**
 * A chart, drawn by uPlot: lines over time, a distribution, or stacked bars; the same as a table
 * beside it, for whoever cannot see it.
 *
 *     drawChart(page, "lag", { title: "Lag", at: [ms, …], lines: [{ … }], say: span })
 *
 * Its height is the style sheet's, so nothing moves when data come. Colours are names of variables
 * of the style sheet: a chart is made anew when the system goes from light to dark.
 *
 * @typedef {import("../main.js").Page} Page
 *
 * @typedef {object} Line
 * @property {string} label
 * @property {string} colour  Variable of the style sheet: "--accent".
 * @property {(number | null)[]} values  One for each of `at`; null where nothing is known.
 * @property {boolean} [filled]
 *
 * @typedef {object} Plot
 * @property {string} title  Of the whole, for its table and for screen readers.
 * @property {number[]} at  Ascending: times in ms since the epoch, unless `sayAt` is given.
 * @property {Line[]} lines
 * @property {(value: number) => string} say  A value with its unit.
 * @property {(at: number) => string} [sayAt]  A value of the axis to the right, which is no time.
 * @property {"lines" | "steps" | "stack"} [kind]  "stack": bars, the first line lowest.
 * @property {boolean} [logarithmic]  The axis to the right.
 * @property {number[]} [grid]  Distances of lines of the grid that are round in the unit of values.
 * @property {[number, number]} [shown]  Ends of the axis to the right; else those of the data.
 * @property {number} [most]  Upper end of the values; else that of the data.
 * @property {number} [least]  The upper end of the values is at least this.
 * @property {{at: number, label: string}[]} [marks]  Moments at which something has happened.
 * @property {string} [empty]  In place of the chart while there is no value.
 */
import uPlotModule from "../vendor/uplot/uPlot.esm.js";
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { clock, clockInZone, timeOfDay, utc, visible } from "../words.js";
import { betweenStops, stopsWithLabels, stopsWithin } from "./stops.js";

/** Its declarations stand in another file than the module, so its type is not found. */
const uPlot = /** @type {any} */ (uPlotModule);

/** Rows of the table beside a chart; the newest ones. */
const TABLE_ROWS = 120;

/** Distances of lines of the grid for values in ms. */
export const SPANS = [
  1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 10e3, 15e3, 30e3, 60e3, 120e3, 300e3, 600e3,
  1800e3, 3600e3, 7200e3, 14400e3, 43200e3, 86400e3, 172800e3, 604800e3,
];

/** Moments that are closer than this are one line. */
const MARK_PX = 6;

class PlotPart extends HTMLElement {
  constructor() {
    super();
    /** @type {Plot | undefined} */
    this._plot = undefined;
    /** @type {any} */
    this._drawn = undefined;
    /** What the chart was made for: with another one it must be made anew. */
    this._made = "";
    this._readout = document.createElement("output");
    this._readout.className = "chart-readout";
    this._readout.setAttribute("aria-hidden", "true");
    this._dark = matchMedia("(prefers-color-scheme: dark)");
    this._restyle = () => {
      this._made = "";
      this._update();
    };
    this._resized = new ResizeObserver(() => this._update());
  }

  /** @param {Plot} plot */
  set plot(plot) {
    this._plot = plot;
    this._update();
  }

  connectedCallback() {
    this.append(this._readout);
    this._resized.observe(this);
    this._dark.addEventListener("change", this._restyle);
  }

  disconnectedCallback() {
    this._resized.disconnect();
    this._dark.removeEventListener("change", this._restyle);
    this._drawn?.destroy();
    this._drawn = undefined;
  }

  _update() {
    const plot = this._plot;
    const size = { width: this.clientWidth, height: this.clientHeight };
    if (!plot || !this.isConnected || !size.width || !size.height) return;
    const made = JSON.stringify([plot.title, plot.kind, plot.lines.map((one) => one.label)]);
    const data = [plot.at, ...drawnValues(plot)];
    if (!this._drawn || made !== this._made) {
      this._drawn?.destroy();
      this._made = made;
      this._drawn = new uPlot(this._options(plot, size), data, this);
    } else {
      const { width, height } = this._drawn;
      if (width !== size.width || height !== size.height) this._drawn.setSize(size);
      this._drawn.setData(data);
    }
    if (this._drawn.cursor.idx == null) this._say(undefined);
  }

  /**
   * @param {Plot} plot
   * @param {{width: number, height: number}} size
   */
  _options(plot, size) {
    const colour = (/** @type {string} */ name) =>
      getComputedStyle(this).getPropertyValue(name).trim();
    const axis = {
      stroke: colour("--muted"),
      font: "12px system-ui, sans-serif",
      grid: { stroke: colour("--line"), width: 1 },
      ticks: { show: false },
    };
    return {
      ...size,
      ms: 1,
      legend: { show: false },
      // At the right there is half of a label that stands at the end: with its seconds, or "no. 1,000".
      padding: [18, 32, 0, 0],
      cursor: { drag: { x: false, y: false }, points: { size: 7 }, y: false },
      scales: {
        x: {
          time: !plot.sayAt,
          distr: plot.logarithmic ? 3 : 1,
          range: (/** @type {any} */ _u, /** @type {number} */ min, /** @type {number} */ max) =>
            plot.logarithmic
              ? betweenStops(min, max)
              : (this._plot?.shown ?? (min === max ? [min - 1, max + 1] : [min, max])),
        },
        y: {
          range: (/** @type {any} */ _u, /** @type {number} */ _min, /** @type {number} */ max) => [
            0,
            this._plot?.most ?? Math.max((max ?? 0) * 1.08, this._plot?.least ?? 1),
          ],
        },
      },
      axes: [
        {
          ...axis,
          size: 28,
          space: 72,
          // Micro-batches are counted: there is none between two of them.
          ...(plot.kind === "stack"
            ? { incrs: [1, 2, 5, 10, 20, 50, 100, 500, 1e3, 1e4, 1e5, 1e6] }
            : {}),
          ...(plot.logarithmic
            ? {
                splits: (/** @type {any} */ u) => stopsWithin(u.scales.x),
                filter: (/** @type {any} */ u, /** @type {number[]} */ splits) =>
                  stopsWithLabels(splits, u.bbox.width / devicePixelRatio),
              }
            : {}),
          grid: { ...axis.grid, show: !plot.logarithmic },
          values: (/** @type {any} */ _u, /** @type {number[]} */ splits) => {
            const step = (splits[1] ?? 0) - (splits[0] ?? 0);
            return splits.map((at) =>
              at == null ? "" : (this._plot?.sayAt?.(at) ?? axisTime(at, step)),
            );
          },
        },
        {
          ...axis,
          size: 76,
          space: 32,
          ...(plot.grid ? { incrs: plot.grid } : {}),
          values: (/** @type {any} */ _u, /** @type {number[]} */ splits) =>
            splits.map((value) => (this._plot ?? plot).say(value)),
        },
      ],
      series: [{}, ...drawnLines(plot, colour)],
      hooks: {
        draw: [(/** @type {any} */ u) => drawMarks(u, this._plot?.marks ?? [], colour("--muted"))],
        setCursor: [(/** @type {any} */ u) => this._say(u.cursor.idx)],
      },
    };
  }

  /**
   * Say the values at the cursor, or the newest ones.
   * @param {number | null | undefined} index
   */
  _say(index) {
    const plot = this._plot;
    if (!plot) return;
    const at = index ?? newest(plot);
    const known = plot.lines.filter((line) => line.values[at] != null);
    const numbers = known.map((line) => /** @type {number} */ (line.values[at]));
    const values =
      plot.kind === "stack"
        ? [plot.say(numbers.reduce((sum, one) => sum + one, 0))]
        : numbers.map((one, n) =>
            known.length > 1 ? `${known[n].label} ${plot.say(one)}` : plot.say(one),
          );
    const when = plot.at[at] === undefined ? "" : sayAt(plot, plot.at[at], clockInZone);
    this._readout.textContent = numbers.length ? `${when} · ${values.join(" · ")}` : "";
  }
}
customElements.define("plot-part", PlotPart);

/**
 * A chart with the table of the same values.
 * @param {Page} page
 * @param {string} key  Of the chart on this screen.
 * @param {Plot} plot
 */
export function drawChart(page, key, plot) {
  const some = plot.lines.some((line) => line.values.some((value) => value != null));
  if (!some) return html`<p class="chart chart-empty">${plot.empty ?? "Nothing is known yet."}</p>`;
  return html`<figure class="chart-figure" aria-label=${plot.title}>
    <plot-part class="chart" .plot=${plot} aria-hidden="true"></plot-part>
    ${drawLegend(plot)} ${drawTable(page, key, plot)}
  </figure>`;
}

/** @param {Plot} plot */
function drawLegend({ lines }) {
  if (lines.length < 2) return nothing;
  return html`<ul class="legend" aria-hidden="true">
    ${lines.map(
      ({ label, colour }) =>
        html`<li>
          <svg viewBox="0 0 10 10" width="10" height="10">
            <rect width="10" height="10" rx="2" fill="var(${colour})" />
          </svg>
          ${visible(label, 60)}
        </li>`,
    )}
  </ul>`;
}

/**
 * @param {Page} page
 * @param {string} key
 * @param {Plot} plot
 */
function drawTable(page, key, plot) {
  const open = `table ${key}`;
  /** @param {Event} event */
  const toggled = (event) => {
    page.local[open] = /** @type {HTMLDetailsElement} */ (event.target).open;
    page.redraw();
  };
  return html`<details class="chart-table" @toggle=${toggled}>
    <summary>${plot.title} as a table</summary>
    ${page.local[open] ? drawRows(plot) : nothing}
  </details>`;
}

/** @param {Plot} plot */
function drawRows(plot) {
  const places = plot.at
    .map((_, place) => place)
    .reverse()
    .slice(0, TABLE_ROWS);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="${plot.title}, values">
    <table class="numbers">
      <thead>
        <tr>
          <th scope="col">${plot.sayAt ? "At" : "Time"}</th>
          ${plot.lines.map((line) => html`<th scope="col">${visible(line.label, 60)}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${places.map(
          (place) =>
            html`<tr>
              <th scope="row" title=${plot.sayAt ? nothing : utc(plot.at[place])}>
                ${sayAt(plot, plot.at[place])}
              </th>
              ${plot.lines.map(({ values }) => {
                const value = values[place];
                return html`<td>${value == null ? "–" : plot.say(value)}</td>`;
              })}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/**
 * The values as uPlot draws them: bars that are stacked reach up to the sum of those below.
 * @param {Plot} plot
 */
function drawnValues({ kind, lines }) {
  if (kind !== "stack") return lines.map((line) => line.values);
  /** @type {number[]} */
  let sums = [];
  const stacked = lines.map(({ values }) => {
    sums = values.map((value, at) => (sums[at] ?? 0) + (value ?? 0));
    return sums;
  });
  // The highest are drawn first, so that each stands in front of what is above it.
  return stacked.reverse();
}

/**
 * @param {Plot} plot
 * @param {(name: string) => string} colour
 */
function drawnLines({ kind, lines }, colour) {
  const { paths } = uPlot;
  const drawn = lines.map((line) => {
    const stroke = colour(line.colour);
    const plain = { label: line.label, stroke, width: 1.75, points: { show: false } };
    if (kind === "stack")
      return {
        ...plain,
        fill: stroke,
        width: 0,
        paths: paths.bars({ size: [0.8, 24], radius: 0 }),
      };
    const fill = line.filled ? `color-mix(in srgb, ${stroke} 14%, transparent)` : undefined;
    return { ...plain, fill, ...(kind === "steps" ? { paths: paths.stepped({ align: 1 }) } : {}) };
  });
  return kind === "stack" ? drawn.reverse() : drawn;
}

/**
 * @param {any} u
 * @param {{at: number, label: string}[]} marks
 * @param {string} stroke
 */
function drawMarks(u, marks, stroke) {
  const { ctx, bbox } = u;
  ctx.save();
  ctx.strokeStyle = stroke;
  ctx.setLineDash([3 * devicePixelRatio, 3 * devicePixelRatio]);
  ctx.beginPath();
  let last = -MARK_PX;
  for (const at of marks.map((mark) => mark.at).sort((a, b) => a - b)) {
    const x = Math.round(u.valToPos(at, "x", true)) + 0.5;
    if (x < bbox.left || x > bbox.left + bbox.width || x - last < MARK_PX) continue;
    last = x;
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
  }
  ctx.stroke();
  ctx.restore();
}

/** @param {Plot} plot  Place of the newest value. */
function newest({ at, lines }) {
  for (let place = at.length - 1; place > 0; place--)
    if (lines.some((line) => line.values[place] != null)) return place;
  return 0;
}

/**
 * @param {Plot} plot
 * @param {number} at
 * @param {(at: number) => string} sayTime  If it is one; that of a table tells UTC on hover.
 */
function sayAt(plot, at, sayTime = clock) {
  return plot.sayAt ? plot.sayAt(at) : sayTime(at);
}

/**
 * @param {number} at
 * @param {number} step  Distance to the next one.
 */
function axisTime(at, step) {
  const date = new Date(at);
  if (step >= 86_400_000)
    return date.toLocaleDateString(undefined, { day: "numeric", month: "short" });
  return timeOfDay(date, step < 60_000 ? "second" : "minute");
}
