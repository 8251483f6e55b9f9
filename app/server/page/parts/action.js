/**
 * A part of the page that does something, once confirmed: buttons, and a dialog that first says
 * what would happen.
 *
 *     drawActions(page, [{ action: "pause", target: "delays", title: "Pause", effect: "…" }])
 *
 * A button does nothing but open the dialog. An action that can be tried (`tries`) is asked,
 * without `commit`, what it would do, and the answer stands in the dialog; of the others `effect`
 * says it. Each needs the token: where the page has none, the frame asks for it first. Errors are
 * in the application's words. An answer that did not come is never taken for "was not done".
 *
 * @typedef {import("../main.js").Page} Page
 * @typedef {import("../server.js").ServerError} ServerError
 *
 * @typedef {object} Offer
 * @property {string} action  Its name in the API.
 * @property {string} target
 * @property {string} title  Of its button, a verb: "Pause".
 * @property {string} [effect]  What happens, in a sentence or two.
 * @property {boolean} [tries]  The application says what it would do, before it does it.
 * @property {boolean} [loses]  Something is gone for good afterwards.
 * @property {(result: any) => string} [outcome]  How it went, in a sentence.
 *
 * @typedef {object} Doing
 * @property {Offer} offer
 * @property {"token" | "trying" | "tried" | "doing" | "failed"} stage
 * @property {string[]} says
 * @property {ServerError | undefined} error
 * @property {boolean} [sent]  It was to be done, and not only tried: the outcome may be unknown.
 * @property {string} [refused]  The token with which it was refused.
 */
import { html, nothing } from "../vendor/lit-html/lit-html.js";
import { visible } from "../words.js";
import { drawRefusal } from "./refusal.js";

/** Opens the dialog that it holds as soon as it is on the page; closing it gives the focus back. */
class ModalPart extends HTMLElement {
  connectedCallback() {
    this.querySelector("dialog")?.showModal();
  }
}
customElements.define("modal-part", ModalPart);

/**
 * Buttons for what can be done, with the dialog of the one that was chosen.
 * @param {Page} page
 * @param {Offer[]} offers
 */
export function drawActions(page, offers) {
  /** @type {Doing | undefined} */
  const doing = page.local.doing;
  const mine = doing && offers.some((offer) => isSame(offer, doing.offer));
  if (mine && doing.stage === "token" && page.dialog !== "token")
    queueMicrotask(() => goOn(page, doing));
  const { done } = page.local;
  const last = done && offers.some((offer) => offer.target === done.target);
  return html`<div class="actions">
    ${offers.map(
      (offer) =>
        html`<button type="button" class="action" @click=${() => begin(page, offer)}>
          ${offer.title}…
        </button>`,
    )}
    <span class="outcome" role="status">${last ? done.says : nothing}</span>
    ${mine && doing.stage !== "token" ? drawDialog(page, doing) : nothing}
  </div>`;
}

/**
 * @param {Page} page
 * @param {Doing} doing
 */
function drawDialog(page, doing) {
  const { offer, stage } = doing;
  const busy = stage === "trying" || stage === "doing";
  const ended = () => {
    page.local.doing = undefined;
    page.redraw();
  };
  /** @param {SubmitEvent} event */
  const submit = (event) => {
    event.preventDefault();
    if (doing.stage === "tried") carryOut(page, doing);
    // What it would do may be something else by now: it is asked anew, and confirmed anew.
    else if (doing.stage === "failed")
      doing.offer.tries ? proceed(page, doing) : carryOut(page, doing);
  };
  return html`<modal-part
    ><dialog class="action-dialog" aria-labelledby="action-title" @close=${ended}>
      <form @submit=${submit}>
        <h2 id="action-title">
          ${offer.title} <span class="name">${visible(offer.target)}</span>?
        </h2>
        <div class="action-says" aria-live="polite">
          ${offer.effect ? html`<p>${offer.effect}</p>` : nothing} ${drawTrial(doing)}
          ${drawProblem(doing)}
        </div>
        <div class="action-buttons">
          <button type="button" @click=${close}>${doing.sent ? "Close" : "Cancel"}</button>
          ${drawConfirm(doing, busy)}
        </div>
      </form>
    </dialog></modal-part
  >`;
}

/** @param {Doing} doing */
function drawTrial({ offer, stage, says }) {
  if (!offer.tries) return nothing;
  if (stage === "trying") return html`<p class="muted">Asking what it would do…</p>`;
  if (!says.length) return nothing;
  return html`<p>It would:</p>
    <ul class="trial">
      ${says.map((one) => html`<li>${visible(one, 1000)}</li>`)}
    </ul>`;
}

/** @param {Doing} doing */
function drawProblem({ error, sent }) {
  if (!error) return nothing;
  // Without an answer the work may go on. With a failure its first steps may have been done, unless
  // the application says that nothing was.
  const isFailure = error.status === 0 || error.status >= 500;
  const unknown = sent && isFailure && error.kind !== "determinate";
  const more = unknown
    ? html`<p>It is not known whether it was done: look before you repeat it.</p>`
    : nothing;
  return drawRefusal(error, more);
}

/**
 * @param {Doing} doing
 * @param {boolean} busy
 */
function drawConfirm({ offer, stage, error }, busy) {
  const title = stage === "doing" ? "Being done…" : error ? "Try again" : offer.title;
  return html`<button class=${offer.loses ? "primary loses" : "primary"} ?disabled=${busy}>
    ${title}
  </button>`;
}

/**
 * @param {Page} page
 * @param {Offer} offer
 */
function begin(page, offer) {
  /** @type {Doing} */
  const doing = { offer, stage: "token", says: [], error: undefined };
  page.local.doing = doing;
  page.local.done = undefined;
  if (page.server.token) proceed(page, doing);
  else askForToken(page);
}

/**
 * The frame's form for the token: `goOn` when it is closed.
 * @param {Page} page
 */
function askForToken(page) {
  page.dialog = "token";
  page.redraw();
}

/**
 * Go on after the form for the token was closed; without another token it is given up.
 * @param {Page} page
 * @param {Doing} doing
 */
function goOn(page, doing) {
  if (page.local.doing !== doing || doing.stage !== "token") return;
  if (page.server.token && page.server.token !== doing.refused) proceed(page, doing);
  else page.local.doing = undefined;
}

/**
 * Say what would happen: at once, or after the application was asked.
 * @param {Page} page
 * @param {Doing} doing
 */
async function proceed(page, doing) {
  doing.stage = doing.offer.tries ? "trying" : "tried";
  doing.error = undefined;
  page.redraw();
  if (!doing.offer.tries) return;
  const result = await ask(page, doing, { commit: false });
  if (result === undefined) return;
  doing.says = sentences(result);
  doing.stage = "tried";
  page.redraw();
}

/**
 * @param {Page} page
 * @param {Doing} doing
 */
async function carryOut(page, doing) {
  const { offer } = doing;
  doing.stage = "doing";
  doing.sent = true;
  doing.error = undefined;
  page.redraw();
  const result = await ask(page, doing, offer.tries ? { commit: true } : {});
  if (result === undefined || page.local.doing !== doing) return;
  const says = offer.outcome?.(result) ?? (sentences(result).join(" ") || `${offer.title}: done.`);
  page.local.done = { target: offer.target, says };
  /** @type {HTMLDialogElement | null} */ (document.querySelector(".action-dialog"))?.close();
  page.redraw();
}

/**
 * The application's result; undefined if it has refused, which then stands in `doing`.
 * @param {Page} page
 * @param {Doing} doing
 * @param {object} more
 */
async function ask(page, doing, more) {
  const { action, target } = doing.offer;
  try {
    const path = `/api/v1/actions/${encodeURIComponent(action)}`;
    return (await page.server.post(path, { target, ...more })).result ?? {};
  } catch (error) {
    doing.error = /** @type {ServerError} */ (error);
    doing.stage = doing.error.code === "TOKEN_NEEDED" ? "token" : "failed";
    if (doing.stage === "token") {
      // Refused at the door: it was certainly not done.
      doing.sent = false;
      doing.refused = page.server.token;
      askForToken(page);
    }
    page.redraw();
    return undefined;
  }
}

/** @param {Event} event */
function close(event) {
  /** @type {Element} */ (event.target).closest("dialog")?.close();
}

/**
 * @param {any} result
 * @returns {string[]}
 */
function sentences(result) {
  return Array.isArray(result?.says) ? result.says.map(String) : [];
}

/**
 * @param {Offer} one
 * @param {Offer} other
 */
function isSame(one, other) {
  return one.action === other.action && one.target === other.target;
}
