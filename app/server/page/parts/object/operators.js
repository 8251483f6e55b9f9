/**
 * The operators of one object, put together from the relations about them.
 *
 * Phases of a micro-batch have times of the clock. Operators that rows go through have those of
 * Spark's tasks, within the phase `addBatch`: they are shown as shares of that phase.
 *
 * @typedef {import("../../main.js").Page} Page
 *
 * @typedef {object} Rows
 * @property {number} rows  Since the start.
 * @property {number} counted  In so many micro-batches.
 * @property {number} observed  Of so many: those of the others are not known.
 *
 * @typedef {object} Operator
 * @property {number} id
 * @property {string} name
 * @property {number | undefined} parent  Id of the operator that it is a part of.
 * @property {number | undefined} lir  Number of the plan's node that it stands for.
 * @property {string} detail  The piece of SQL, or what is read or written.
 * @property {string | null} strategy  The best that it allows by itself; null: it computes nothing.
 * @property {string | null} reason  Why no better one, or how the output is written.
 * @property {number[]} inputs  Ids of those that it takes rows from.
 * @property {number | undefined} elapsed  In ms, since the start.
 * @property {Rows | undefined} rowsIn  Undefined unless those of all inputs are known.
 * @property {Rows | undefined} rowsOut
 * @property {{ records: number, batches: number | null, size: number | null } | undefined} kept
 */

/**
 * The relations that `operatorsOf` is made of, to be followed.
 * @param {string} name
 * @param {Page} page
 * @returns {Record<string, import("../../server.js").Selection>}
 */
export function operatorRelations(name, page) {
  const dataflow = dataflowOf(page);
  const globalId = page.rows("object")?.[0]?.global_id;
  return {
    computeExport: { relation: "compute_exports", where: { export_id: name } },
    storageExport: { relation: "storage_exports", where: { export_id: name } },
    ...(dataflow === undefined
      ? {}
      : {
          operators: { relation: "dataflow_operator_dataflows", where: { dataflow_id: dataflow } },
        }),
    ...(globalId ? { plan: { relation: "lir_mapping", where: { global_id: globalId } } } : {}),
  };
}

/**
 * Those that say how much goes through each operator: of all objects, since they know operators by
 * number only.
 * @returns {Record<string, import("../../server.js").Selection>}
 */
export function movementRelations() {
  return {
    parents: { relation: "dataflow_operator_parents" },
    channels: { relation: "dataflow_channel_operators" },
    messages: { relation: "message_counts" },
    elapsed: { relation: "scheduling_elapsed" },
    arrangements: { relation: "arrangement_sizes" },
  };
}

/** @param {Page} page */
function dataflowOf(page) {
  const [row] = [...(page.rows("computeExport") ?? []), ...(page.rows("storageExport") ?? [])];
  return /** @type {number | undefined} */ (row?.dataflow_id);
}

/**
 * The operators in the order of their numbers, which is that of evaluation; the first is the whole.
 * @param {Page} page
 * @returns {Operator[]}
 */
export function operatorsOf(page) {
  const lir = new Map((page.rows("plan") ?? []).map((row) => [row.operator_id_start, row]));
  const parents = new Map((page.rows("parents") ?? []).map((row) => [row.id, row.parent_id]));
  const elapsed = new Map(
    (page.rows("elapsed") ?? []).map((row) => [row.id, row.elapsed_ns / 1e6]),
  );
  const kept = new Map((page.rows("arrangements") ?? []).map((row) => [row.operator_id, row]));
  const sent = new Map((page.rows("messages") ?? []).map((row) => [row.channel_id, row]));
  const operators = (page.rows("operators") ?? [])
    .map(
      (row) =>
        /** @type {Operator} */ ({
          id: row.id,
          name: row.name,
          parent: parents.get(row.id),
          lir: lir.get(row.id)?.lir_id,
          detail: lir.get(row.id)?.detail ?? "",
          strategy: lir.get(row.id)?.strategy ?? null,
          reason: lir.get(row.id)?.reason ?? null,
          inputs: [],
          elapsed: elapsed.get(row.id),
          rowsIn: undefined,
          rowsOut: undefined,
          kept: kept.get(row.id),
        }),
    )
    .sort((one, other) => one.id - other.id);
  const byId = new Map(operators.map((one) => [one.id, one]));
  for (const channel of page.rows("channels") ?? []) {
    const to = byId.get(channel.to_operator_id);
    const from = byId.get(channel.from_operator_id);
    if (!to || !from) continue;
    const row = sent.get(channel.id);
    const rows = row && {
      rows: row.received,
      counted: row.batch_received,
      observed: row.batch_observed,
    };
    to.rowsIn = to.inputs.length ? bothOf(to.rowsIn, rows) : rows;
    to.inputs.push(from.id);
    // Of several receivers the one that is counted best: each gets all rows.
    if (rows && isCountedBetter(rows, from.rowsOut)) from.rowsOut = rows;
  }
  return operators;
}

/** @param {Rows} one  @param {Rows | undefined} other */
function isCountedBetter(one, other) {
  if (!other) return true;
  const missed = one.observed - one.counted - (other.observed - other.counted);
  return missed < 0 || (missed === 0 && one.rows > other.rows);
}

/**
 * Rows of two inputs together, in the micro-batches in which both can be known.
 * @param {Rows | undefined} one
 * @param {Rows | undefined} other
 * @returns {Rows | undefined}
 */
function bothOf(one, other) {
  return (
    one &&
    other && {
      rows: one.rows + other.rows,
      counted: Math.min(one.counted, other.counted),
      observed: Math.max(one.observed, other.observed),
    }
  );
}

/**
 * @typedef {object} Share
 * @property {Operator} operator
 * @property {number} ms  Its own time, without that of its parts.
 * @property {number} share  Of the whole step's time, 0 to 1.
 */

/**
 * Which operator has which share of the whole's time, by a time for each: since the start, or of
 * the last minute. Empty if the whole's time is not known, or nothing was done.
 * @param {Operator[]} operators
 * @param {(operator: Operator) => number | undefined} timeOf  In ms.
 * @returns {Share[]}
 */
export function sharesOf(operators, timeOf) {
  const whole = operators.find((one) => one.parent === undefined);
  const phases = operators.filter((one) => one.parent === whole?.id && one.lir === undefined);
  const nodes = operators.filter((one) => one.lir !== undefined);
  const phased = phases.reduce((sum, one) => sum + (timeOf(one) ?? 0), 0);
  const total = Math.max((whole && timeOf(whole)) ?? 0, phased);
  if (!total) return [];
  const tasks = nodes.reduce((sum, one) => sum + (timeOf(one) ?? 0), 0);
  /** @type {Share[]} */
  const shares = [];
  for (const phase of phases) {
    const ms = timeOf(phase) ?? 0;
    // Tasks run side by side: their time is only compared with that of each other.
    if (phase.name === "addBatch" && tasks > 0)
      for (const operator of nodes) {
        const own = timeOf(operator) ?? 0;
        if (own) shares.push({ operator, ms: own, share: ((own / tasks) * ms) / total });
      }
    else if (ms) shares.push({ operator: phase, ms, share: ms / total });
  }
  return shares.sort((one, other) => other.share - one.share);
}
