/**
 * The page: which screen is shown, of what, as of when; and the frame around it.
 *
 * A screen only draws. It says which relations it needs (`follows`) and makes a template of their rows
 * (`draw`); what was chosen on it is in the address, so that every view can be sent to somebody.
 *
 * @typedef {import("./server.js").Selection} Selection
 * @typedef {import("./store.js").Row} Row
 *
 * @typedef {object} Screen
 * @property {(name: string) => string} title
 * @property {(name: string, page: Page) => Record<string, Selection>} follows  By keys of its own.
 * @property {(page: Page) => unknown} draw
 * @property {boolean} [live]  It shows the present only: there is nothing to look back at.
 * @property {(page: Page) => void} [leave]  End what runs for it: another screen or name comes.
 */
import { render } from "./vendor/lit-html/lit-html.js";
import { drawFrame, showDialog } from "./parts/frame.js";
import { takeKeys } from "./parts/keys.js";
import { failed } from "./parts/states.js";
import { Server, ServerError } from "./server.js";
import { Store } from "./store.js";
import { visible } from "./words.js";

/** Screens by the first part of the path; those that are shown rarely are loaded when they are. */
const SCREENS = /** @type {Record<string, () => Promise<{ screen: Screen }>>} */ ({
  "": () => import("./screens/overview.js"),
  object: () => import("./screens/object.js"),
  dataflow: () => import("./screens/dataflow.js"),
  shard: () => import("./screens/shard.js"),
  sql: () => import("./screens/sql.js"),
  lane: () => import("./screens/lane.js"),
  project: () => import("./screens/project.js"),
});

/** The screen of any other path. */
const NOWHERE = () => import("./screens/nowhere.js");

/**
 * A screen that did not come is asked for again after so long: at an earlier moment nothing is
 * followed, so no connection tells that the application is back.
 */
const ASK_AGAIN_MS = 5_000;

/** What a view asks of the page. */
export class Page {
  constructor() {
    this.server = new Server(() => this.redraw());
    this._store = new Store(this.server, () => this.redraw());
    /** @type {Screen | undefined} */
    this.screen = undefined;
    /** Name of the screen, as in the path. */
    this.kind = "";
    /** Name of the object or shard that the screen is of; "" if it is of none. */
    this.name = "";
    this.query = new URLSearchParams();
    /** @type {Record<string, Selection>} */
    this._follows = {};
    /** What is open, typed or pointed at: forgotten when another screen or name is chosen. */
    this.local = /** @type {Record<string, any>} */ ({});
    /** How much time the time line shows, by its name there. */
    this.zoom = "";
    /** Which of the frame's dialogs is open: search, keys or token; "" if none is. */
    this.dialog = "";
    /** @type {ServerError | undefined}  Why the one-time code of the address was refused. */
    this.codeError = undefined;
    /**
     * `Server.changes` when a screen was asked for that did not come; undefined if none did not.
     * @type {number | undefined}
     */
    this._missing = undefined;
    /** When that was asked for last, in ms since the epoch. */
    this._missedAt = 0;
    /** @type {Map<string, Asked>} */
    this._asked = new Map();
    this._frame = 0;
    this._arrivals = 0;
  }

  /** The time that is looked at, in ms since the epoch; undefined for the present. */
  get asOf() {
    const at = Number(this.query.get("at"));
    return at && !this.screen?.live ? at : undefined;
  }

  /**
   * The moment that spans are counted from: that which is looked at, or of the newest rows if the
   * connection is lost.
   */
  get now() {
    const { connected, at, age } = this.server;
    // Not by the viewer's clock alone, which may be wrong: times in rows are the application's.
    return this.asOf ?? (at ? at + (connected ? age : 0) : Date.now());
  }

  /**
   * Rows of what the screen follows; undefined until the first ones are here.
   * @param {string} key
   */
  rows(key) {
    const selection = this._follows[key];
    return selection && this._store.rows(selection, this.asOf);
  }

  /**
   * Why rows of what the screen follows are not here.
   * @param {string} key
   */
  error(key) {
    const selection = this._follows[key];
    return selection && this._store.error(selection, this.asOf);
  }

  /**
   * The answer to a question that is asked once, and again only after `ask.again()`.
   * @template T
   * @param {string} key  Of the question: with another one it is another question.
   * @param {() => Promise<T>} load
   * @returns {Asked<T>}
   */
  ask(key, load) {
    let asked = this._asked.get(key);
    if (!asked) {
      asked = new Asked(load, this.server, () => this.redraw());
      this._asked.set(key, asked);
      asked.again();
    }
    return /** @type {Asked<T>} */ (asked);
  }

  /**
   * Ask a question anew when its answer is wanted next: what is known by now may be of hours ago.
   * @param {string} key
   */
  forget(key) {
    this._asked.delete(key);
  }

  /**
   * Go to another screen or choice.
   * @param {string} url
   */
  go(url) {
    history.pushState(null, "", url);
    this.arrive();
  }

  /**
   * Choose something on this screen; "" takes the choice back.
   * @param {Record<string, string>} chosen
   */
  choose(chosen) {
    for (const [name, value] of Object.entries(chosen)) {
      if (value) this.query.set(name, value);
      else this.query.delete(name);
    }
    const text = String(this.query);
    const query = text ? `?${text}` : "";
    history.replaceState(null, "", location.pathname + query);
    this._follow();
    this.redraw();
  }

  /** Address of a screen, as of the time that is looked at. */
  address(kind = "", name = "") {
    const path = `/${[kind, ...(name ? [encodeURIComponent(name)] : [])].join("/")}`;
    return this.asOf === undefined ? path : `${path}?at=${this.asOf}`;
  }

  /** Show what the address says. */
  async arrive() {
    const arrival = ++this._arrivals;
    const [kind = "", ...rest] = location.pathname.split("/").slice(1);
    const name = decode(rest.join("/"));
    this.query = new URLSearchParams(location.search);
    this.dialog = "";
    if (kind !== this.kind || name !== this.name || !this.screen) {
      // Of the question, not of its answer, which may come long after a new connection.
      const asked = this.server.changes;
      const screen = await this._load(kind);
      // Somebody has gone on while its module was on its way.
      if (arrival !== this._arrivals) return;
      this.screen?.leave?.(this);
      this.screen = screen;
      this._missing = screen ? undefined : asked;
      this._missedAt = Date.now();
      this.kind = kind;
      this.name = name;
      this.local = {};
      // What is followed may depend on rows: never on those of another object.
      this._follows = {};
      this._asked.clear();
    }
    const title = this.screen?.title(name) ?? "Not here";
    document.title = `${visible(title, 60)} – Shardline`;
    this._follow();
    this.redraw();
  }

  /**
   * Its module may not come: the application is gone, or another version of it is there by now.
   * @param {string} kind
   */
  async _load(kind) {
    try {
      return (await (Object.hasOwn(SCREENS, kind) ? SCREENS[kind] : NOWHERE)()).screen;
    } catch {
      return undefined;
    }
  }

  /** Why there is no screen; undefined if there is one. */
  get screenError() {
    if (this._missing === undefined) return undefined;
    const hint =
      "Is the application running? When it answers this screen comes by itself; if it does not " +
      "come, another version of the application is there: load the page again.";
    return new ServerError("NO_SCREEN", "This screen could not be loaded.", hint);
  }

  /** Whether a screen did not come that may come now: the application is back, or may be. */
  get _mayComeNow() {
    if (this._missing === undefined) return false;
    const isDue = Date.now() - this._missedAt > ASK_AGAIN_MS;
    return isDue || this._missing !== this.server.changes;
  }

  /** Draw with the next frame; many calls are one. */
  redraw() {
    this._frame ||= requestAnimationFrame(() => {
      this._frame = 0;
      if (this._mayComeNow && !this.dialog) {
        // Once for each: the answer says when it was asked for.
        this._missing = this.server.changes;
        this._missedAt = Date.now();
        this.arrive();
      }
      const root = /** @type {HTMLElement} */ (document.getElementById("page"));
      try {
        this._follow();
        render(drawFrame(this), root);
      } catch (error) {
        // What stood there would stay, and say that it is live. The console has where it comes from;
        // the next frame may do better with other rows.
        reportError(error);
        const says = `The page cannot be drawn: ${error}`;
        const hint = "Another address may do: what is shown is chosen by it.";
        render(failed(new ServerError("NOT_DRAWN", says, hint)), root);
      }
      showDialog();
    });
  }

  _follow() {
    if (!this.screen) return;
    this._follows = this.screen.follows(this.name, this);
    this._store.follow(Object.values(this._follows), this.asOf);
  }
}

/**
 * A question to the application, and its answer. An answer stays until the next one is here.
 * @template [T=any]
 */
class Asked {
  /**
   * @param {() => Promise<T>} load
   * @param {Server} server
   * @param {() => void} changed
   */
  constructor(load, server, changed) {
    this._load = load;
    this._server = server;
    this._changed = changed;
    this._turn = 0;
    this._change = 0;
    /** When the last answer, or the failure, came; in ms since the epoch. */
    this.endedAt = 0;
    /** @type {T | undefined} */
    this.value = undefined;
    /** @type {ServerError | undefined} */
    this.error = undefined;
    this.loading = false;
  }

  /** Whether it has failed, and the page has another token or connection since. */
  get mayWorkNow() {
    return this.error !== undefined && this._change !== this._server.changes;
  }

  async again() {
    const turn = ++this._turn;
    this._change = this._server.changes;
    this.loading = true;
    this._changed();
    try {
      const value = await this._load();
      if (turn !== this._turn) return;
      this.value = value;
      this.error = undefined;
    } catch (error) {
      if (turn !== this._turn) return;
      this.error = /** @type {ServerError} */ (error);
    }
    this.loading = false;
    this.endedAt = Date.now();
    this._changed();
  }
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * Follow links within the page without loading it anew.
 * @param {Page} page
 */
function takeLinks(page) {
  document.addEventListener("click", (event) => {
    const link = /** @type {Element} */ (event.target).closest("a[href^='/']");
    const plain = event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey;
    const href = link?.getAttribute("href") ?? "";
    if (!link || !plain || link.hasAttribute("download") || href.startsWith("/api/")) return;
    event.preventDefault();
    page.go(href);
  });
  // Also another printed link at the address that is open: of what stands behind `#` a browser only
  // tells.
  window.addEventListener("popstate", async () => {
    await takeCode(page);
    page.arrive();
  });
}

/**
 * Exchange the one-time code of a printed link for the token, and take it out of the address.
 * @param {Page} page
 */
async function takeCode(page) {
  const code = new URLSearchParams(location.hash.slice(1)).get("code");
  if (!code) return;
  history.replaceState(null, "", location.pathname + location.search);
  try {
    page.server.token = (await page.server.post("/api/v1/session", { code })).token;
    page.codeError = undefined;
  } catch (error) {
    page.codeError = /** @type {ServerError} */ (error);
  }
}

/**
 * Redraw once a second: spans that are shown grow also while no rows come.
 * @param {Page} page
 */
function tick(page) {
  setInterval(() => document.hidden || page.redraw(), 1_000);
}

const page = new Page();
takeLinks(page);
takeKeys(page);
tick(page);
await takeCode(page);
await page.arrive();

