/**
 * The screen for SQL: queries, as of any time, how they would be answered, and subscriptions.
 *
 * The statement stands in the address behind `#`, which is neither sent nor logged.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../main.js").Screen} Screen
 * @typedef {import("../store.js").Row} Row
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { Editor, loadEditor } from "../parts/editor.js";
import { drawAnswer } from "../parts/answer.js";
import { StatementRun } from "../parts/statement_run.js";
import { forgetStatements, rememberStatement, statements } from "../parts/statements.js";
import { drawTime } from "../parts/time.js";
import { visible, zone } from "../words.js";

const EXAMPLE = "SELECT * FROM introspection.verdicts";
const AS_OF = /\s+AS\s+OF\s+(?:'[^']*'|"[^"]*"|\d+)(?=\s*;?\s*$)/i;
const HISTORY_SHOWN = 8;
const NO_EDITOR =
  "The editor could not be loaded. It comes by itself when the application answers again.";

/** @type {Screen} */
export const screen = {
  live: true,
  title: () => "SQL",
  follows: () => ({
    objects: { relation: "objects" },
    details: { relation: "object_details" },
  }),
  leave: (page) => page.local.run?.cancel(),
  draw(page) {
    const { local } = page;
    const editor = page.ask("editor", async () => makeEditor(page, await loadEditor()));
    if (editor.mayWorkNow && !editor.loading) editor.again();
    // Asked for now, to be there when the first letter is typed.
    askRelations(page);
    takeAddress(page, editor.value);
    takeToken(page);
    /** @type {StatementRun | undefined} */
    const run = local.run;
    return html`<div class="tool sql">
      <h1 class="sr">SQL</h1>
      <section class="card sql-statement" aria-label="Statement">
        <div class="editor-room">
          ${
            editor.value?.element ??
            html`<p class="empty" role="status">
              ${editor.error ? NO_EDITOR : nothing}
            </p>`
          }
        </div>
        ${drawToolbar(page, editor.value)}
      </section>
      ${run ? drawAnswer(page, run) : drawWelcome()} ${drawHistory(page, editor.value)}
    </div>`;
  },
};

/**
 * @param {Page} page
 * @param {any} CodeMirror
 */
function makeEditor(page, CodeMirror) {
  const text = statementOfAddress() || statements()[0]?.sql || EXAMPLE;
  /** @type {Editor} */
  const editor = new Editor(CodeMirror, {
    text,
    run: () => run(page, editor, editor.text),
    changed: (written) => {
      writeAddress(page, written);
      page.redraw();
    },
    names: () => namesToComplete(page),
  });
  page.local.address = location.hash;
  return editor;
}

/**
 * @param {Page} page
 * @param {Editor | undefined} editor
 */
function drawToolbar(page, editor) {
  /** @type {StatementRun | undefined} */
  const running = page.local.run?.isRunning ? page.local.run : undefined;
  const apple = /Mac|iPhone|iPad/.test(navigator.platform);
  return html`<div class="sql-bar">
    <button
      class="primary"
      ?disabled=${!editor}
      @click=${() => editor && run(page, editor, editor.text)}
    >
      Run <kbd>${apple ? "⌘ ↵" : "Ctrl ↵"}</kbd>
    </button>
    <button ?disabled=${!editor} @click=${() => editor && explain(page, editor)}>Explain</button>
    <label class="sql-time">
      As of, ${zoneOf(asOfOf(editor?.text ?? ""))}
      <input
        type="datetime-local"
        step="1"
        ?disabled=${!editor}
        .value=${asOfOf(editor?.text ?? "")}
        @change=${(/** @type {Event} */ event) =>
          editor && setAsOf(editor, /** @type {HTMLInputElement} */ (event.target).value)}
      />
    </label>
    <span class="rest"></span>
    ${running ? html`<button @click=${() => running.cancel()}>Cancel</button>` : nothing}
  </div>`;
}

/**
 * @param {Page} page
 * @param {Editor} editor
 * @param {string} text
 */
function run(page, editor, text) {
  const sql = text.trim();
  if (!sql) return;
  page.local.run?.cancel();
  const run = new StatementRun(page, text);
  page.local.run = run;
  page.local.shown = undefined;
  rememberStatement(editor.text.trim());
  writeAddress(page, editor.text);
  run.go().then(() => {
    if (page.local.run !== run || !run.error) return;
    editor.mark(placeOf(run.error.message, text, editor.text));
  });
  page.redraw();
}

/**
 * @param {Page} page
 * @param {Editor} editor
 */
function explain(page, editor) {
  const { text } = editor;
  run(page, editor, /^\s*EXPLAIN\b/i.test(text) ? text : `EXPLAIN ${text}`);
}

/**
 * The place that an error names, in the editor's text.
 * @param {string} message
 * @param {string} sent
 * @param {string} written
 */
function placeOf(message, sent, written) {
  const found = /^sql:(\d+):(\d+): /m.exec(message);
  if (!found) return undefined;
  const [line, column] = [Number(found[1]), Number(found[2])];
  const before = line === 1 ? sent.length - written.length : 0;
  return { line, column: Math.max(1, column - before) };
}

/**
 * Put a time into the statement, in the place of the one that it has; "" takes it out.
 * @param {Editor} editor
 * @param {string} local  A date-time in the viewer's zone.
 */
function setAsOf(editor, local) {
  const time = local ? ` AS OF '${new Date(local).toISOString().replace(".000Z", "Z")}'` : "";
  const text = editor.text.replace(AS_OF, "");
  const end = /\s*;?\s*$/.exec(text)?.index ?? text.length;
  editor.text = text.slice(0, end) + time + text.slice(end);
}

/**
 * The time of a statement, as its field has it; "" without one.
 * @param {string} text
 */
function asOfOf(text) {
  const said = AS_OF.exec(text)?.[0].replace(/^\s+AS\s+OF\s+|['"]/gi, "");
  if (!said) return "";
  const ms = /^\d+$/.test(said) ? Number(said) : Date.parse(said);
  if (Number.isNaN(ms)) return "";
  const local = new Date(ms - new Date(ms).getTimezoneOffset() * 60_000);
  return Number.isNaN(local.getTime()) ? "" : local.toISOString().slice(0, 19);
}

/** @param {string} local  A date-time in the viewer's zone, whose name is returned; "": now. */
function zoneOf(local) {
  return zone(local ? Date.parse(local) : Date.now());
}

/** @param {Page} page */
function askRelations(page) {
  return page.ask("relations", () => page.server.get("/api/v1/relations"));
}

/**
 * What can be completed: columns by object and by relation.
 * @param {Page} page
 * @returns {import("../parts/editor.js").Names}
 */
function namesToComplete(page) {
  /** @type {import("../parts/editor.js").Names} */
  const found = {};
  for (const { id, type } of page.rows("objects") ?? [])
    if (type === "source" || type === "view") found[id] = [];
  for (const { object_id: id, schema } of page.rows("details") ?? [])
    if (found[id]) found[id] = columnNames(schema);
  for (const { name, columns } of askRelations(page).value?.relations ?? [])
    found[`introspection.${name}`] = columns.map((/** @type {Row} */ column) => column.name);
  return Object.fromEntries(Object.entries(found).sort(([a], [b]) => (a < b ? -1 : 1)));
}

/** @param {string | null} schema  As JSON. @returns {string[]} */
function columnNames(schema) {
  try {
    return JSON.parse(schema ?? "[]").map((/** @type {Row} */ column) => String(column.name));
  } catch {
    return [];
  }
}

/** The statement in the address; "" if there is none. */
function statementOfAddress() {
  return new URLSearchParams(location.hash.slice(1)).get("sql") ?? "";
}

/**
 * @param {Page} page
 * @param {string} text
 */
function writeAddress(page, text) {
  const hash = text.trim() ? `#${new URLSearchParams({ sql: text })}` : "";
  page.local.address = hash;
  history.replaceState(null, "", location.pathname + location.search + hash);
}

/**
 * Take a statement that somebody has put into the address.
 * @param {Page} page
 * @param {Editor | undefined} editor
 */
function takeAddress(page, editor) {
  if (!editor || location.hash === page.local.address) return;
  page.local.address = location.hash;
  const text = statementOfAddress();
  if (text) editor.text = text;
}

/**
 * Run again what was refused for want of the token, when it is there: a read does no harm. What has
 * brought something goes on.
 * @param {Page} page
 */
function takeToken(page) {
  /** @type {StatementRun | undefined} */
  const refused = page.local.run;
  if (refused?.error?.code !== "TOKEN_NEEDED" || refused.token === page.server.token) return;
  if (refused.canGoOn) return refused.goOn();
  const again = new StatementRun(page, refused.sql);
  page.local.run = again;
  again.go();
}

function drawWelcome() {
  return html`<section class="card sql-welcome">
    <p>
      Ask anything of the objects here, as of now or of an earlier time; <code>EXPLAIN</code> says
      how it would be answered, <code>SUBSCRIBE TO name</code> shows every change as it happens.
      Names are completed by <kbd>Ctrl</kbd> <kbd>Space</kbd>.
    </p>
  </section>`;
}

/**
 * @param {Page} page
 * @param {Editor | undefined} editor
 */
function drawHistory(page, editor) {
  const all = statements();
  if (!all.length) return nothing;
  const shown = page.local.allStatements ? all : all.slice(0, HISTORY_SHOWN);
  /** @param {string} sql */
  const choose = (sql) => {
    if (!editor) return;
    editor.text = sql;
    editor.focus();
  };
  const forget = () => {
    forgetStatements();
    page.redraw();
  };
  const open = () => {
    page.local.allStatements = true;
    page.redraw();
  };
  return html`<section class="card" aria-labelledby="history-title">
    <header class="card-head">
      <h2 id="history-title">Earlier statements</h2>
      <span class="more">kept in this browser only</span>
      <span class="rest"></span>
      <button class="quiet" @click=${forget}>Clear</button>
    </header>
    <ol class="statements">
      ${shown.map(
        ({ sql, at }) =>
          html`<li>
            <button class="statement" ?disabled=${!editor} @click=${() => choose(sql)}>
              <code>${visible(sql.replace(/\s+/g, " "), 300)}</code>
              ${drawTime(at)}
            </button>
          </li>`,
      )}
    </ol>
    ${
      all.length > shown.length
        ? html`<p class="cut">
            <button class="quiet" @click=${open}>Show all ${all.length}</button>
          </p>`
        : nothing
    }
  </section>`;
}
