/**
 * The screen of the project: its files against what runs, and what a run of it would change.
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../main.js").Screen} Screen
 *
 * @typedef {object} Change
 * @property {string} object
 * @property {string} change  create, change, replace, drop or none.
 * @property {string | null} now
 * @property {string | null} wanted
 * @property {string[]} why
 * @property {string} [file]  Where it is defined; "" if in no file.
 * @property {number} [line]
 *
 * @typedef {object} Problem
 * @property {string} file  "" if it is no file's.
 * @property {number} line  From 1; 0 if it has none.
 * @property {number} column
 * @property {string} code
 * @property {string} message
 * @property {string} hint
 *
 * @typedef {object} Compared
 * @property {string} name
 * @property {string} folder
 * @property {Change[]} changes
 * @property {Problem[]} [problems]  What is wrong with the files; then there are no changes.
 * @property {string} [refused]  Why a run would be refused; "" if it would not.
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { guard } from "../vendor/lit-html/directives/guard.js";
import { lineDifference } from "../parts/line_difference.js";
import { drawSentence } from "../parts/object_link.js";
import { drawRefusal } from "../parts/refusal.js";
import { drawTime } from "../parts/time.js";
import { count, countOf, visible } from "../words.js";

/** In this order: what loses something comes first. */
const GROUPS = [
  {
    kind: "replace",
    title: "Made anew",
    sign: "↻",
    does: (/** @type {string} */ many) => `make ${many} anew`,
    meaning: "Their shards are dropped, with their history, and filled again.",
  },
  {
    kind: "drop",
    title: "Dropped",
    sign: "−",
    does: (/** @type {string} */ many) => `drop ${many}`,
    meaning: "They run and are in no file any more. They stop for good.",
  },
  {
    kind: "change",
    title: "Changed",
    sign: "~",
    does: (/** @type {string} */ many) => `change ${many}`,
    meaning: "They go on with the new definition and keep their shards.",
  },
  {
    kind: "create",
    title: "Created",
    sign: "+",
    does: (/** @type {string} */ many) => `create ${many}`,
    meaning: "They are in the files and do not run yet.",
  },
];

const SIGNS = { same: " ", gone: "−", come: "+" };
const SPOKEN = { same: "", gone: "taken away: ", come: "added: " };

/** @type {Screen} */
export const screen = {
  live: true,
  title: () => "Project",
  // Nothing is drawn of it: a lost connection is known by what is followed.
  follows: () => ({ summary: { relation: "verdict_summary" } }),
  draw(page) {
    const asked = page.ask("project", async () => ({
      project: await page.server.get("/api/v1/project"),
      at: Date.now(),
    }));
    const { value, error, loading } = asked;
    return html`<div class="tool project">
      <header class="screen-head">
        <div>
          <h1>Project</h1>
          ${value ? html`<p class="aside">${drawAbout(value)}</p>` : nothing}
        </div>
        <button class="action" ?disabled=${loading} @click=${() => asked.again()}>
          ${loading && value ? "Comparing…" : "Compare again"}
        </button>
      </header>
      ${
        error
          ? drawRefused(error)
          : // Lines are compared once for an answer, and not once a second.
            guard([value], () => (value ? drawProject(page, value.project) : nothing))
      }
      ${value || error ? nothing : drawWaiting()}
    </div>`;
  },
};

function drawWaiting() {
  return html`<p class="empty card" role="status">
    Comparing the project's files with what runs…
  </p>`;
}

/** @param {{ project: Compared, at: number }} value */
function drawAbout({ project: { name, folder }, at }) {
  return html`${name ? html`<b>${visible(name, 120)}</b> · ` : nothing}${
    folder ? html`${visible(folder, 300)} · ` : nothing
  }as
  its files were at ${drawTime(at)}`;
}

/**
 * @param {Page} page
 * @param {Compared} compared
 */
function drawProject(page, { changes, problems = [], refused: why = "" }) {
  if (problems.length) return drawProblems(problems);
  return html`${drawPlan(changes)}
  ${why ? html`<p class="card needs"><b>A run would be refused.</b> ${drawSentence(page, why, isNone, 2000)}</p>` : nothing}
  ${drawGroups(page, changes)}`;
}

/** No name in a sentence is a link: what is spoken of stands above, or is no object yet. */
const isNone = () => false;

/** @param {Problem[]} problems */
function drawProblems(problems) {
  const many = problems.length === 1 ? "a problem" : countOf(problems.length, "problem");
  return html`<p class="verdict-of-plan" role="status">
      The project cannot run as it is written: it has ${many}.
    </p>
    ${problems.map(({ file, line, column, ...error }) => {
      const place = file && line ? `${file}:${line}:${column}` : file;
      return html`<section class="card">${drawRefusal({ ...error, place })}</section>`;
    })}`;
}

/** @param {import("../server.js").ServerError} error */
function drawRefused({ code, message, hint }) {
  if (code === "NO_PROJECT" || (code === "NOT_FOUND" && !hint.includes("log")))
    return html`<section class="card">
      <p class="empty" role="status">
        ${code === "NO_PROJECT" ? sentence(message) : "This application was given no project."}
        ${hint && code === "NO_PROJECT" ? sentence(hint) : nothing}
      </p>
    </section>`;
  return html`<section class="card">${drawRefusal({ code, message, hint })}</section>`;
}

/** @param {string} text  Of an error, which begins in lower case and has no full stop. */
function sentence(text) {
  const said = visible(text, 1000);
  return `${said.charAt(0).toUpperCase()}${said.slice(1)}${/[.!?…]$/.test(said) ? "" : "."}`;
}

/** @param {Change[]} changes */
function groupChanges(changes) {
  return GROUPS.map((group) => ({
    ...group,
    members: changes.filter(({ change }) => change === group.kind),
  })).filter(({ members }) => members.length);
}

/** @param {Change[]} changes */
function drawPlan(changes) {
  const same = changes.filter(({ change }) => change === "none").length;
  return html`<p class="verdict-of-plan" role="status">
    ${describePlan(groupChanges(changes), same)}
  </p>`;
}

/**
 * @param {Page} page
 * @param {Change[]} changes
 */
function drawGroups(page, changes) {
  const same = changes.filter(({ change }) => change === "none");
  return html`${groupChanges(changes).map(
    ({ kind, title, sign, meaning, members }) =>
      html`<section class="card group" aria-labelledby=${`${kind}-title`}>
        <header class="card-head">
          <span class="change-kind ${kind}" aria-hidden="true">${sign}</span>
          <h2 id=${`${kind}-title`}>${title}</h2>
          <span class="more">${count(members.length)}</span>
          <p class="meaning">${meaning}</p>
        </header>
        ${members.map((member) => drawChange(page, member))}
      </section>`,
  )}
  ${same.length ? drawUnchanged(page, same) : nothing}`;
}

/**
 * @param {{ does: (many: string) => string, members: Change[] }[]} groups
 * @param {number} same
 */
function describePlan(groups, same) {
  const stays = `${countOf(same, "object")} ${same === 1 ? "stays as it is" : "stay as they are"}`;
  if (!groups.length) return `A run of the project would change nothing: ${stays}.`;
  const said = groups.map(({ does, members }) => does(count(members.length)));
  const all = [said.slice(0, -1).join(", "), said.at(-1)].filter(Boolean).join(" and ");
  return `A run of the project would ${all}; ${stays}.`;
}

/**
 * @param {Page} page
 * @param {Change} change
 */
function drawChange(page, { object, change, now, wanted, why, file, line }) {
  const [before, after] = [now, wanted].map((text) => (text ?? "").trimEnd());
  const lines = lineDifference(before, after).filter(
    // Without a text there is no line, and not an empty one.
    ({ kind }) => !(kind === "gone" && now === null) && !(kind === "come" && wanted === null),
  );
  const come = lines.filter(({ kind }) => kind === "come").length;
  const gone = lines.filter(({ kind }) => kind === "gone").length;
  return html`<article class="change" aria-label=${visible(object, 120)}>
    <h3>
      ${
        change === "create"
          ? visible(object, 120)
          : html`<a href=${page.address("object", object)}>${visible(object, 120)}</a>`
      }
      ${come ? html`<span class="come">+${come}</span>` : nothing}
      ${gone ? html`<span class="gone">−${gone}</span>` : nothing}
      ${file ? html`<span class="place">${visible(file, 200)}${line ? `:${line}` : ""}</span>` : nothing}
    </h3>
    ${
      why.length
        ? html`<ul class="why">
            ${why.map((one) => html`<li>${drawSentence(page, one, isNone, 1000)}</li>`)}
          </ul>`
        : nothing
    }
    ${
      lines.length
        ? html`<div
            class="difference"
            tabindex="0"
            role="group"
            aria-label=${`Difference of ${visible(object, 120)}`}
          >
            ${lines.map(
              ({ kind, text }) =>
                html`<div class=${kind}>
                  <span class="sign" aria-hidden="true">${SIGNS[kind]}</span
                  ><span class="sr">${SPOKEN[kind]}</span
                  ><code>${visible(text.replaceAll("\t", "  "), 2000) || " "}</code>
                </div>`,
            )}
          </div>`
        : nothing
    }
  </article>`;
}

/**
 * @param {Page} page
 * @param {Change[]} same
 */
function drawUnchanged(page, same) {
  return html`<section class="card" aria-labelledby="same-title">
    <details>
      <summary class="card-head">
        <h2 id="same-title">Unchanged</h2>
        <span class="more">${count(same.length)}</span>
      </summary>
      <ul class="names">
        ${same.map(
          ({ object: name }) =>
            html`<li>
              <a href=${page.address("object", name)}>${visible(name, 120)}</a>
            </li>`,
        )}
      </ul>
    </details>
  </section>`;
}
