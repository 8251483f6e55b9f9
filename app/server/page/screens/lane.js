/**
 * The screen of the lane: who holds the location, who is connected, and who has asked for what. Of an
 * earlier moment the commands of until then are known, and by them who held the location.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../main.js").Screen} Screen
 * @typedef {import("../store.js").Row} Row
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { drawActions } from "../parts/action.js";
import { drawCard, drawRowsTable } from "../parts/card.js";
import { drawCommands } from "../parts/commands.js";
import { objectLink } from "../parts/object_link.js";
import { failed } from "../parts/states.js";
import { drawTime, lasting } from "../parts/time.js";
import { count, visible } from "../words.js";

/** @type {Screen} */
export const screen = {
  title: () => "Lane",
  follows: (_name, page) => ({
    location: { relation: "location" },
    commands: { relation: "command_history" },
    // What has no history need not be asked for at an earlier time.
    ...(page.asOf === undefined ? presentRelations() : {}),
  }),
  draw(page) {
    return html`<div class="tool lane">
      <header class="screen-head">
        <div>
          <h1>Lane</h1>
          <p class="aside">
            The one durable order of everything that starts, changes or ends what runs.
            ${
              page.asOf === undefined || refusalOf(page)
                ? nothing
                : html`Of this time the commands are known, and by them who held the location: no
                  history is kept of who was connected, and of what was read.`
            }
          </p>
        </div>
      </header>
      ${page.asOf === undefined ? drawPresent(page) : drawEarlier(page)}
    </div>`;
  },
};

/** @returns {Record<string, import("../server.js").Selection>} */
function presentRelations() {
  return {
    connections: { relation: "connections" },
    peeks: { relation: "active_peeks" },
    subscriptions: { relation: "subscriptions" },
  };
}

/** @param {Page} page */
function drawPresent(page) {
  return html`${drawHolder(page)}
    <div class="columns">${drawConnections(page)} ${drawReads(page)}</div>
    ${drawCommands(page)}`;
}

/**
 * Why the lane of the moment that is looked at is not known; undefined if it is.
 * @param {Page} page
 */
function refusalOf(page) {
  return page.rows("commands") ? undefined : page.error("commands");
}

/** @param {Page} page */
function drawEarlier(page) {
  const refused = refusalOf(page);
  if (refused) return failed(refused);
  return html`${drawHolderThen(page)} ${drawCommands(page)}`;
}

/** @param {Page} page */
function drawHolderThen(page) {
  const rows = page.rows("location");
  const [at] = rows ?? [];
  if (!at)
    return html`<section class="card">
      <p class="empty" role="status">
        ${
          rows
            ? "Who held the location then is not known: no command that is kept says so."
            : "Asking who held the location…"
        }
      </p>
    </section>`;
  return html`<section class="card" aria-labelledby="holder-title">
    <header class="card-head"><h2 id="holder-title">The location</h2></header>
    <dl class="holder-facts">
      ${drawFact("Held by", at.holder)} ${drawFact("Held since", at.held_since, true)}
      ${at.project ? drawFact("Project", at.project) : nothing}
    </dl>
  </section>`;
}

/** @param {Page} page */
function drawHolder(page) {
  const rows = page.rows("location");
  const [at] = rows ?? [];
  if (!at)
    return html`<section class="card">
      <p class="empty" role="status">
        ${
          page.error("location")
            ? "This application does not tell who holds its location."
            : rows
              ? "Nobody holds the location yet: the application is starting."
              : "Asking who holds the location…"
        }
      </p>
    </section>`;
  return html`<section class="card" aria-labelledby="holder-title">
    <header class="card-head">
      <h2 id="holder-title">The location</h2>
      <span class="rest"></span>
      ${at.read_only ? drawPromote(page) : nothing}
    </header>
    <p class="mode ${at.read_only ? "follows" : "holds"}">
      ${
        at.read_only
          ? html`<b>Read-only.</b> This process follows the holder and writes nothing.`
          : html`<b>Writes.</b> This process holds the location.`
      }
    </p>
    <dl class="holder-facts">
      ${drawFact("Held by", at.holder)}
      ${at.held_since ? drawFact("Held since", at.held_since, true) : nothing}
      ${drawFact("Epoch", count(at.epoch))} ${drawFact("Waiting commands", count(at.queue))}
      ${drawFact("Project", at.project)} ${drawFact("Location", at.location)}
      ${drawFact("Data folder", at.data_folder)} ${drawFact("Served at", at.address)}
      ${drawFact("Version", at.version)} ${drawFact("Process started", at.started_at, true)}
    </dl>
  </section>`;
}

/** @param {Page} page */
function drawPromote(page) {
  return drawActions(page, [
    {
      action: "allow_writes",
      target: "",
      title: "Allow writes",
      effect:
        "This process and all that come after it may write from here on. It takes the location: " +
        "whoever holds it now is fenced out, and cannot write any more.",
      outcome: () => "Writes are allowed.",
    },
  ]);
}

/**
 * @param {string} name
 * @param {any} value
 * @param {boolean} [isTime]
 */
function drawFact(name, value, isTime = false) {
  return html`<div>
    <dt>${name}</dt>
    <dd>${isTime ? drawTime(value) : visible(value ?? "–", 300)}</dd>
  </div>`;
}

/** @param {Page} page */
function drawConnections(page) {
  const rows = page.rows("connections") ?? [];
  const none = page.error("connections")
    ? "This application does not tell who is connected."
    : page.rows("connections")
      ? "Nobody is connected."
      : "Asking…";
  const sorted = [...rows].sort((a, b) => order(a.kind, b.kind) || order(a.since, b.since));
  return drawCard({ id: "connections", title: "Connections", many: rows.length, none }, () =>
    drawRowsTable(
      "Connections",
      ["Kind", "Name", "State", "Since"],
      [],
      sorted.map(
        (row) =>
          html`<tr role="row">
            <td role="cell">${visible(row.kind)}</td>
            <th role="rowheader" scope="row">${visible(row.name, 120)}</th>
            <td role="cell" class="beside">${visible(row.state)}</td>
            <td role="cell" class="above">${drawTime(row.since)}</td>
          </tr>`,
      ),
      "stacked",
    ),
  );
}

/** @param {Page} page */
function drawReads(page) {
  const peeks = page.rows("peeks");
  const subscriptions = page.rows("subscriptions");
  const none =
    peeks && subscriptions ? "Nobody reads at the moment." : "Asking for reads under way…";
  const rows = [...groupPeeks(peeks ?? []), ...(subscriptions ?? []).map(subscribed)].sort((a, b) =>
    order(a.since, b.since),
  );
  return drawCard({ id: "reads", title: "Reads under way", many: rows.length, none }, () =>
    drawRowsTable(
      "Reads under way",
      ["Kind", "Objects", "For"],
      [2],
      rows.map(
        ({ kind, id, objects, since }) =>
          html`<tr role="row">
            <td role="cell" title=${visible(id)}>${kind}</td>
            <th role="rowheader" scope="row">
              ${objects.map((name, at) => html`${at ? ", " : ""}${objectLink(page, name)}`)}
              ${objects.length ? nothing : "no object"}
            </th>
            <td role="cell" class="number above">${lasting(since, page.now)}</td>
          </tr>`,
      ),
      "stacked",
    ),
  );
}

/**
 * @typedef {{ kind: string, id: string, objects: string[], since: string }} Read
 */

/**
 * A peek has a row for each object that it reads.
 * @param {Row[]} peeks
 * @returns {Read[]}
 */
function groupPeeks(peeks) {
  /** @type {Map<string, Read>} */
  const found = new Map();
  for (const { id, object_id: object, type, started_at: since } of peeks) {
    const kind = type ? `query (${type})` : "query";
    /** @type {Read} */
    const read = found.get(id) ?? { kind, id, objects: [], since };
    if (object !== null) read.objects.push(object);
    found.set(id, read);
  }
  return [...found.values()];
}

/** @param {Row} row @returns {Read} */
function subscribed({ id, referenced_object_ids: objects, created_at: since }) {
  return { kind: "subscription", id, objects: objects ?? [], since };
}

/**
 * @param {any} a
 * @param {any} b
 */
function order(a, b) {
  return a < b ? -1 : Number(a > b);
}
