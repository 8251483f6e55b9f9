/**
 * Talks to the application; nothing else in the page does.
 *
 * Relations are followed over one WebSocket (docs/introspection.md, "Subscriptions"). When it is lost
 * it is opened again, and each relation goes on from the last moment that this page has of it. A
 * page that is hidden has no connection: it costs the application nothing, and catches up when it is
 * looked at.
 *
 * @typedef {string | number | boolean | null} Scalar
 * @typedef {{ relation: string, where?: Record<string, Scalar> }} Selection
 * @typedef {{ snapshot?: unknown[][], added?: unknown[][], removed?: unknown[][] }} Change
 *
 * @typedef {object} Follower
 * @property {(columns: string[]) => void} begun  The relation's columns, before its first rows.
 * @property {(change: Change, at: number) => void} changed  Rows as of `at`, in ms since the epoch.
 * @property {(error: ServerError) => void} refused  There is no such relation, or column.
 */

const PROTOCOL = "shardline-relations-v1";
const TOKEN_PROTOCOL = "shardline-token-";
const TOKEN_KEY = "shardline-token";

/** A moment comes each second; after so long without one the connection is taken for lost. */
const SILENT_MS = 6_000;
const RETRY_FIRST_MS = 500;
const RETRY_LONGEST_MS = 5_000;

/** A refusal, in the application's words; or a failure to reach it (`NO_ANSWER`). */
export class ServerError extends Error {
  /**
   * @param {string} code
   * @param {string} message
   * @param {string} hint
   * @param {number} status  Of HTTP; 0 without an answer.
   * @param {string} kind  What the application says of its outcome; "" if it says nothing.
   */
  constructor(code, message, hint, status = 0, kind = "") {
    super(message);
    this.code = code;
    this.hint = hint;
    this.status = status;
    this.kind = kind;
  }
}

export class Server {
  /** @param {() => void} changed  Called when the connection or the token has changed. */
  constructor(changed) {
    this.changed = changed;
    /** Whether the connection was lost, and no moment has come since. */
    this.lost = false;
    /** Grows with each token and each connection: what has failed before may work after it. */
    this.changes = 0;
    this._hasMoments = false;
    this._heardAt = 0;
    /** Time of the newest moment, in ms since the epoch; 0 before the first. */
    this.at = 0;
    /** Whether the application has refused the page for want of its token. */
    this.needsToken = false;
    /** @type {Map<string, {selection: Selection, follower: Follower, mark: string, live: boolean}>} */
    this._followed = new Map();
    /** @type {WebSocket | undefined} */
    this._socket = undefined;
    this._retryMs = RETRY_FIRST_MS;
    this._retry = 0;
    this._silence = 0;
    document.addEventListener("visibilitychange", () => this._look());
    window.addEventListener("online", () => this._look());
  }

  /**
   * Whether moments arrive. By the clock and not by a timer alone: those sleep with the machine, and
   * what was on the page before would pass for the present until they are awake.
   */
  get connected() {
    return this._hasMoments && this.age < SILENT_MS;
  }

  /** How long ago the newest moment came, in ms: the viewer's clock may differ from its time. */
  get age() {
    return Date.now() - this._heardAt;
  }

  get token() {
    return sessionStorage.getItem(TOKEN_KEY) ?? "";
  }

  set token(value) {
    sessionStorage.setItem(TOKEN_KEY, value);
    this.needsToken = false;
    this.changes += 1;
    this._disconnect();
    this._look();
    this.changed();
  }

  /** Go on without the token that was asked for: reading may need none. */
  forgoToken() {
    if (!this.needsToken) return;
    this.needsToken = false;
    this._look();
  }

  /**
   * Follow a relation. Rows arrive through `follower`, again and again, until `unfollow(id)`.
   * @param {string} id
   * @param {Selection} selection
   * @param {Follower} follower
   */
  follow(id, selection, follower) {
    const entry = { selection, follower, mark: "", live: false };
    this._followed.set(id, entry);
    if (this._socket?.readyState === WebSocket.OPEN) this._subscribe(id, entry);
    else this._look();
  }

  /** @param {string} id */
  unfollow(id) {
    if (this._followed.delete(id)) this._send({ unsubscribe: id });
  }

  /**
   * @param {string} path
   * @returns {Promise<any>}
   * @throws {ServerError}
   */
  get(path) {
    return this._ask(path, {});
  }

  /**
   * @param {string} path
   * @param {object} body
   * @param {AbortSignal} [signal]  Ends the request; the application ends what it has begun for it.
   * @returns {Promise<any>}
   * @throws {ServerError}
   */
  post(path, body, signal) {
    const headers = { "content-type": "application/json" };
    return this._ask(path, { method: "POST", headers, body: JSON.stringify(body), signal });
  }

  /**
   * Like `post`, for an answer that comes in lines of JSON for as long as it is read.
   * @param {string} path
   * @param {object} body
   * @param {AbortSignal} signal
   * @returns {AsyncGenerator<any>}
   * @throws {ServerError}
   */
  async *lines(path, body, signal) {
    const headers = { "content-type": "application/json" };
    const options = { method: "POST", headers, body: JSON.stringify(body), signal };
    const answer = await this._answer(path, options);
    const reader = /** @type {ReadableStream<Uint8Array>} */ (answer.body).getReader();
    const decoder = new TextDecoder();
    for (let rest = "", end = false; !end; ) {
      const { value, done } = await reader.read().catch((error) => refuse(error, signal));
      end = done;
      const found = (rest + decoder.decode(value, { stream: !done })).split("\n");
      rest = found.pop() ?? "";
      for (const line of found) if (line) yield parse(line);
    }
  }

  /**
   * @param {string} path
   * @param {RequestInit} options
   * @returns {Promise<any>}
   */
  async _ask(path, options) {
    return parse(await (await this._answer(path, options)).text());
  }

  /**
   * @param {string} path
   * @param {RequestInit} options
   * @returns {Promise<Response>}
   */
  async _answer(path, options) {
    const { token } = this;
    const headers = new Headers(options.headers);
    // A header has no letters beyond Latin-1, a token may: in UTF-8, as everybody sends it.
    if (token) headers.set("authorization", `Bearer ${utf8(token)}`);
    let answer;
    try {
      answer = await fetch(path, { ...options, headers });
    } catch (error) {
      refuse(error, options.signal);
    }
    if (answer.ok) return answer;
    const { error } = await answer.json().catch(() => ({ error: {} }));
    const { code = "UNREADABLE", message = "The answer cannot be read.", hint = "", kind } = error;
    // One that was asked without it may be answered after the token was given.
    if (code === "TOKEN_NEEDED" && token === this.token) {
      this.needsToken = true;
      this.changed();
    }
    throw new ServerError(code, message, hint, answer.status, kind);
  }

  _look() {
    clearTimeout(this._retry);
    if (document.hidden) this._disconnect();
    else if (!this._socket && this._followed.size && !this.needsToken) this._connect();
  }

  _connect() {
    const offered = [PROTOCOL];
    if (this.token) offered.push(TOKEN_PROTOCOL + base64url(this.token));
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    const socket = new WebSocket(`${scheme}//${location.host}/api/v1/subscriptions`, offered);
    this._socket = socket;
    this._listen(SILENT_MS * 2);
    socket.onopen = () => {
      for (const [id, entry] of this._followed) this._subscribe(id, entry);
    };
    socket.onmessage = (event) => {
      if (socket === this._socket) this._received(parse(event.data));
    };
    socket.onclose = () => {
      if (socket === this._socket) this._lost();
    };
  }

  _disconnect() {
    const socket = this._socket;
    this._socket = undefined;
    clearTimeout(this._silence);
    for (const entry of this._followed.values()) entry.live = false;
    socket?.close();
    if (this._hasMoments) {
      // A hidden page that is looked at again must not show old rows as those of now until the
      // first moment comes.
      this._hasMoments = false;
      this.changed();
    }
  }

  /** Open the connection again in a while, unless the application wants the token first. */
  _lost() {
    this._disconnect();
    // Without anything to follow, as at an earlier time, silence is no loss.
    this.lost = this._followed.size > 0;
    this.changed();
    // A browser does not say why a WebSocket was refused. A GET, to which the same rules apply, does.
    // It is not waited for: one that is sent over a connection that has silently gone ends in minutes.
    const signal = /** @type {any} */ (AbortSignal).timeout(SILENT_MS);
    this._ask("/api/v1/relations", { signal }).catch(() => undefined);
    clearTimeout(this._retry);
    this._retry = window.setTimeout(() => this._look(), this._retryMs * (0.5 + Math.random()));
    this._retryMs = Math.min(this._retryMs * 2, RETRY_LONGEST_MS);
  }

  /** @param {number} ms  Take the connection for lost if nothing comes for so long. */
  _listen(ms) {
    clearTimeout(this._silence);
    this._silence = window.setTimeout(() => this._lost(), ms);
  }

  /** @param {any} message */
  _received(message) {
    this._listen(SILENT_MS);
    const { subscribed, moment, error } = message;
    if (subscribed) this._followed.get(subscribed.id)?.follower.begun(subscribed.columns);
    if (error) this._refused(error);
    if (moment) this._moment(moment);
  }

  /** @param {{id: string, code: string, message: string, hint: string}} error */
  _refused({ id, code, message, hint }) {
    const entry = this._followed.get(id);
    this._followed.delete(id);
    entry?.follower.refused(new ServerError(code, message, hint));
  }

  /** @param {{mark: string, at: number, changes: (Change & {id: string})[]}} moment */
  _moment({ mark, at, changes }) {
    for (const change of changes) {
      const entry = this._followed.get(change.id);
      if (!entry) continue;
      entry.live = true;
      entry.follower.changed(change, at);
    }
    // A mark counts for those that have had a change on this connection, also for those that have
    // none in this moment.
    for (const entry of this._followed.values()) if (entry.live) entry.mark = mark;
    this.at = at;
    this._retryMs = RETRY_FIRST_MS;
    const wasConnected = this.connected;
    this._hasMoments = true;
    this._heardAt = Date.now();
    this.lost = false;
    if (wasConnected) return;
    this.changes += 1;
    this.changed();
  }

  /**
   * @param {string} id
   * @param {{selection: Selection, mark: string}} entry
   */
  _subscribe(id, { selection, mark }) {
    this._send({ subscribe: { id, ...selection, ...(mark ? { after: mark } : {}) } });
  }

  /** @param {object} message */
  _send(message) {
    if (this._socket?.readyState === WebSocket.OPEN) this._socket.send(JSON.stringify(message));
  }
}

/** @param {string} text  As a string of its bytes in UTF-8. */
function utf8(text) {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

/**
 * Say that there is no answer, unless the page itself has ended the request.
 * @param {unknown} error
 * @param {AbortSignal | null} [signal]
 * @returns {never}
 */
function refuse(error, signal) {
  if (signal?.aborted) throw error;
  throw new ServerError("NO_ANSWER", "The application does not answer.", "Is it running?");
}

/**
 * Parse JSON without rounding: an integer that a number cannot hold is its digits, as text. A BIGINT
 * of a query's result would else be shown as another one, and so would a shard's time in nanoseconds.
 * @param {string} text
 */
function parse(text) {
  // Browsers that do not hand out the source round, as JSON.parse always did.
  return JSON.parse(
    text,
    /** @type {any} */ (
      (/** @type {string} */ _key, /** @type {any} */ value, /** @type {any} */ context) =>
        Number.isInteger(value) && !Number.isSafeInteger(value) && context?.source
          ? context.source
          : value
    ),
  );
}

/** @param {string} text */
function base64url(text) {
  return btoa(utf8(text)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}
