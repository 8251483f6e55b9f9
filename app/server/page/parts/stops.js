/**
 * Places of labels on a logarithmic axis of spans of time: those that people say.
 */
const STOPS = [1, 10, 100, 1e3, 10e3, 60e3, 600e3, 3600e3, 36000e3, 86400e3, 864000e3];

/** Room for the label of one. */
const STOP_PX = 48;

/**
 * The stops around values, so that there are labels however few values there are.
 * @param {number} min  In ms.
 * @param {number} max
 * @returns {[number, number]}
 */
export function betweenStops(min, max) {
  const from = STOPS.filter((stop) => stop <= min).at(-1) ?? STOPS[0];
  const to = STOPS.find((stop) => stop >= max && stop > from) ?? STOPS[STOPS.length - 1];
  return [from, to];
}

/** @param {{min: number, max: number}} ends  Of the axis. */
export function stopsWithin({ min, max }) {
  return STOPS.filter((stop) => stop >= min && stop <= max);
}

/**
 * Leaves out those whose labels have no room.
 * @param {number[]} stops
 * @param {number} width  Of the axis.
 */
export function stopsWithLabels(stops, width) {
  const every = Math.ceil(stops.length / Math.max(1, width / STOP_PX));
  return stops.map((stop, at) => (at % every ? null : stop));
}
