/**
 * Numbers, sizes, spans and times, as people read them. No words of a verdict: those are the
 * application's. A number and its unit are never on two lines: between them is a no-break space.
 */

// Formats are made once: to make one takes much longer than to write a number with it.
const PLAIN = new Intl.NumberFormat();
const COMPACT = new Intl.NumberFormat(undefined, {
  notation: "compact",
  maximumSignificantDigits: 3,
});
const WHOLE = new Intl.NumberFormat(undefined, { maximumFractionDigits: 0 });
const TENTHS = new Intl.NumberFormat(undefined, { maximumFractionDigits: 1 });
const ALWAYS_TENTHS = new Intl.NumberFormat(undefined, {
  minimumFractionDigits: 1,
  maximumFractionDigits: 1,
});
const CLOCKS = {
  minute: clockFormat({}),
  second: clockFormat({ second: "2-digit" }),
  millisecond: clockFormat({ second: "2-digit", fractionalSecondDigits: 3 }),
};
const ZONE = new Intl.DateTimeFormat(undefined, { timeZoneName: "short" });
const DAY = new Intl.DateTimeFormat(undefined, {
  day: "numeric",
  month: "short",
  year: "numeric",
});

/**
 * All times of day have 24 hours, whatever the viewer's language: those of the axes have no room for
 * more, and two clocks on one screen could not be compared.
 * @param {Intl.DateTimeFormatOptions} parts  Beside hours and minutes.
 */
function clockFormat(parts) {
  const usual = /** @type {const} */ ({ hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
  return new Intl.DateTimeFormat(undefined, { ...usual, ...parts });
}

/** @param {number | null | undefined} value  A count; "–" if it is not known. */
export function count(value) {
  if (value == null) return "–";
  if (Math.abs(value) < 10_000) return PLAIN.format(value);
  // Some languages write a million with an m, which stands beside minutes and metres here.
  return COMPACT.format(value).replace(/(?<=\d)m$/, "M");
}

/**
 * A count with what is counted: "1 row", "12.3k rows"; "–" if it is not known.
 * @param {number | null | undefined} value
 * @param {string} one  The word for one of them.
 * @param {string} several  For any other number.
 */
export function countOf(value, one, several = `${one}s`) {
  return value == null ? "–" : `${count(value)}\u00a0${value === 1 ? one : several}`;
}

/** @param {number | null | undefined} bytes  Units of 1024, as everywhere in the application. */
export function size(bytes) {
  if (bytes == null) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let at = 0;
  let value = bytes;
  for (; value >= 1024 && at < units.length - 1; at++) value /= 1024;
  return `${(at && value < 10 ? TENTHS : WHOLE).format(value)}\u00a0${units[at]}`;
}

/** @param {number | null | undefined} ms  A span of time, with its two largest units at most. */
export function span(ms) {
  if (ms == null) return "–";
  if (ms < 1_000) return `${Math.round(ms)}\u00a0ms`;
  if (ms < 10_000) return `${TENTHS.format(ms / 1_000)}\u00a0s`;
  const units = /** @type {[string, number][]} */ ([
    ["d", 86_400],
    ["h", 3_600],
    ["min", 60],
    ["s", 1],
  ]);
  let rest = Math.round(ms / 1_000);
  const said = [];
  for (const [unit, seconds] of units) {
    const many = Math.floor(rest / seconds);
    rest -= many * seconds;
    if (many || said.length) said.push(many ? `${many}\u00a0${unit}` : "");
    if (said.length === 2) break;
  }
  return said.filter(Boolean).join("\u00a0");
}

/** @param {number | null | undefined} ms  A lag: in seconds also below one, to be compared. */
export function late(ms) {
  if (ms == null || ms >= 10_000) return span(ms);
  return `${ALWAYS_TENTHS.format(ms / 1_000)}\u00a0s`;
}

/** @param {number} share  0 to 1. */
export function percent(share) {
  return `${(share > 0 && share < 0.0995 ? TENTHS : WHOLE).format(share * 100)}\u00a0%`;
}

/**
 * A moment of a relation, in ms since the epoch. Relations write it as ISO 8601, or as a number.
 * @param {string | number | null | undefined} value
 * @returns {number | undefined}
 */
export function moment(value) {
  if (value == null) return undefined;
  const ms = typeof value === "number" ? value : Date.parse(value);
  return Number.isNaN(ms) ? undefined : ms;
}

/** The last moment that a date can have, in ms since the epoch; the first is as far before it. */
const LAST_MS = 8.64e15;

/**
 * Whether there is a date for a moment. Addresses and shards have any number for one.
 * @param {number} ms
 */
export function hasDate(ms) {
  return Math.abs(ms) <= LAST_MS;
}

/**
 * The time of day in the viewer's zone.
 * @param {Date} at
 * @param {keyof typeof CLOCKS} finest  What is told beside hours.
 */
export function timeOfDay(at, finest) {
  return CLOCKS[finest].format(at);
}

/**
 * Clock time in the viewer's zone, with the date unless it is today's; the number if it has no date.
 * @param {number} ms
 */
export function clock(ms, now = Date.now()) {
  if (!hasDate(ms)) return String(ms);
  const at = new Date(ms);
  const time = timeOfDay(at, "second");
  const isToday = at.toDateString() === new Date(now).toDateString();
  return isToday ? time : `${DAY.format(at)}, ${time}`;
}

/**
 * The viewer's zone at a moment, as his language writes it: "CET", "CEST", "GMT+5:30".
 * @param {number} ms
 */
export function zone(ms) {
  const parts = ZONE.formatToParts(hasDate(ms) ? ms : Date.now());
  return parts.find(({ type }) => type === "timeZoneName")?.value ?? "";
}

/**
 * As `clock`, with its zone: for a text in which a time cannot be pointed at, to be told UTC.
 * @param {number} ms
 */
export function clockInZone(ms, now = Date.now()) {
  return hasDate(ms) ? `${clock(ms, now)}\u00a0${zone(ms)}` : String(ms);
}

/** @param {number} ms  In UTC, to the millisecond: for the hover of a time. */
export function utc(ms) {
  if (!hasDate(ms)) return String(ms);
  return `${new Date(ms).toISOString().replace("T", " ").replace("Z", "")} UTC`;
}

/**
 * A name or text from data, made safe to look at: what cannot be seen, or turns the direction of
 * reading, is shown by its code.
 * @param {unknown} text
 * @param {number} longest  In characters; the rest is cut.
 */
export function visible(text, longest = 200) {
  const all = [...String(text ?? "")];
  const cut = all.length > longest ? `${all.slice(0, longest).join("")}…` : all.join("");
  return cut.replace(
    /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\u2028\u2029]/gu,
    (c) => `⟨${(c.codePointAt(0) ?? 0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
}

/**
 * Text of several lines, such as a query: as `visible`, but for its ends of lines and tabs.
 * @param {unknown} text
 * @param {number} longest  In characters; the rest is cut.
 */
export function visibleLines(text, longest = 100_000) {
  const all = String(text ?? "");
  const cut = all.length > longest ? `${all.slice(0, longest)}…` : all;
  return cut
    .replaceAll("\r\n", "\n")
    .split("\n")
    .map((line) => line.split("\t").map((piece) => visible(piece, Infinity)).join("\t"))
    .join("\n");
}
