/**
 * Edits SQL: CodeMirror, with the names of this location to complete.
 *
 * Its files are scripts of before modules. They are imported all the same, one after the other:
 * without `module` and `define` each takes the window for its home, and `import()` is the one way to
 * load a script that the page's policy leaves open (a script element would need a policy of Trusted
 * Types that takes any address).
 *
 * @typedef {{ text: string, line?: number, column?: number }} Mark
 * @typedef {Record<string, string[]>} Names  Columns by object or relation.
 */

const HOME = new URL("../vendor/codemirror/", import.meta.url);
const SCRIPTS = [
  "lib/codemirror.js",
  "mode/sql/sql.js",
  "addon/edit/matchbrackets.js",
  "addon/hint/show-hint.js",
  "addon/hint/sql-hint.js",
];
const STYLES = ["lib/codemirror.css", "addon/hint/show-hint.css"];

/** Words of ours that Spark's SQL does not have. */
const OUR_WORDS = ["SUBSCRIBE", "SNAPSHOT", "OF", "UP"];

/** Name of what the columns of all mentioned objects are completed from; nobody can type it. */
const MENTIONED = "\u0000mentioned";

/** @type {Promise<any> | undefined} */
let loading;

/**
 * Load the editor once; again after a failure, which may have been the application's absence.
 * @returns {Promise<any>} CodeMirror.
 */
export function loadEditor() {
  loading ??= load().catch((error) => {
    loading = undefined;
    throw error;
  });
  return loading;
}

async function load() {
  await Promise.all([...STYLES.map(loadStyle), loadScripts()]);
  const { CodeMirror } = /** @type {any} */ (window);
  const spark = CodeMirror.resolveMode("text/x-sparksql");
  const ours = Object.fromEntries(OUR_WORDS.map((word) => [word.toLowerCase(), true]));
  CodeMirror.defineMIME("text/x-shardline", {
    ...spark,
    keywords: { ...spark.keywords, ...ours },
  });
  return CodeMirror;
}

async function loadScripts() {
  // In this order: each needs the one before it.
  for (const file of SCRIPTS) await import(new URL(file, HOME).href);
}

/** @param {string} file */
function loadStyle(file) {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = new URL(file, HOME).href;
  const loaded = new Promise((done) => (link.onload = link.onerror = done));
  // Before the page's own sheets, which give it their colours.
  document.head.prepend(link);
  return loaded;
}

export class Editor {
  /**
   * @param {any} CodeMirror
   * @param {object} given
   * @param {string} given.text
   * @param {() => void} given.run  Called by Ctrl+Enter.
   * @param {(text: string) => void} given.changed
   * @param {() => Names} given.names
   */
  constructor(CodeMirror, { text, run, changed, names }) {
    /** Where the editor is drawn; a view puts it into its template. */
    this.element = document.createElement("div");
    this.element.className = "editor";
    this._CodeMirror = CodeMirror;
    this._names = names;
    /** @type {any[]} */
    this._marks = [];
    this._editor = CodeMirror(this.element, {
      value: text,
      mode: "text/x-shardline",
      lineWrapping: true,
      matchBrackets: true,
      viewportMargin: Infinity,
      screenReaderLabel: "SQL statement",
      // Tab leaves the editor: nobody may be caught in it by the keyboard.
      extraKeys: {
        "Ctrl-Enter": run,
        "Cmd-Enter": run,
        "Ctrl-Space": () => this.complete(false),
        Tab: false,
        "Shift-Tab": false,
      },
    });
    this._editor.on("change", () => {
      this.mark(undefined);
      changed(this.text);
    });
    this._editor.on("inputRead", (/** @type {any} */ _editor, /** @type {any} */ change) => {
      if (/^[\w.]$/.test(change.text.join("\n"))) this.complete(true);
    });
    let isFirst = true;
    // It measures itself, which it cannot before it is in the page; nor can it have the focus.
    new ResizeObserver(() => {
      this._editor.refresh();
      if (isFirst) this.focus();
      isFirst = false;
    }).observe(this.element);
  }

  get text() {
    return this._editor.getValue();
  }

  set text(value) {
    if (value !== this.text) this._editor.setValue(value);
    this._editor.setCursor(this._editor.lineCount(), 0);
  }

  focus() {
    this._editor.focus();
  }

  /**
   * Mark the place of an error, or none.
   * @param {{ line: number, column: number } | undefined} place  From 1, in the text.
   */
  mark(place) {
    for (const mark of this._marks) mark.clear();
    this._marks = [];
    if (!place) return;
    const { line, column } = place;
    const found = this._editor.getLine(line - 1);
    if (found === undefined) return;
    const start = Math.min(column - 1, Math.max(found.length - 1, 0));
    const word = /^\w+/.exec(found.slice(start))?.[0] ?? " ";
    const options = { className: "sql-wrong", attributes: { "data-wrong": "" } };
    const [from, to] = [start, start + word.length].map((ch) => ({ line: line - 1, ch }));
    this._marks = [this._editor.markText(from, to, options)];
    this._editor.setCursor(from);
  }

  /** @param {boolean} isTyping  Then one name alone is not put in. */
  complete(isTyping) {
    this._editor.showHint({
      hint: () => this._hints(),
      completeSingle: !isTyping,
      alignWithWord: true,
      container: this.element,
    });
  }

  _hints() {
    const names = this._names();
    const tables = { ...names, [MENTIONED]: mentionedColumns(this.text, names) };
    const options = { tables, defaultTable: MENTIONED };
    const hints = this._CodeMirror.hint.sql(this._editor, options);
    const list = hints.list.filter((/** @type {any} */ hint) => textOf(hint) !== MENTIONED);
    const shown = { ...hints, list };
    this._CodeMirror.on(shown, "shown", () => {
      this.element.querySelector(".CodeMirror-hints")?.setAttribute("aria-label", "Names");
    });
    return shown;
  }
}

/** @param {any} hint */
function textOf(hint) {
  return typeof hint === "string" ? hint : hint.text;
}

/**
 * Columns of everything that a statement names.
 * @param {string} text
 * @param {Names} names
 */
function mentionedColumns(text, names) {
  const words = new Set(text.toLowerCase().match(/[\w.]+/g) ?? []);
  const found = Object.entries(names).filter(([name]) => words.has(name.toLowerCase()));
  return [...new Set(found.flatMap(([, columns]) => columns))].sort();
}
