/**
 * Tells a view how wide the element is that it draws into, and draws it anew when that has changed.
 *
 * A picture with text cannot be stretched to its place: what fits has to be known.
 *
 *     html`<div ${measured(page, "axis")}>${draw(page.local.axis ?? 0)}</div>`
 *
 * @typedef {import("../main.js").Page} Page
 */
import { Directive, directive } from "../vendor/lit-html/directive.js";
import { nothing } from "../vendor/lit-html/lit-html.js";

class Measured extends Directive {
  /** @param {any} info */
  constructor(info) {
    super(info);
    /** @type {Element | undefined} */
    this._element = undefined;
  }

  render() {
    return nothing;
  }

  /**
   * @param {any} part
   * @param {any[]} given  The page, and the key in `page.local` that gets the width in px.
   */
  update(part, given) {
    const [page, key] = /** @type {[Page, string]} */ (given);
    if (part.element !== this._element) {
      const element = /** @type {Element} */ (part.element);
      this._element = element;
      // The observer lives as long as the element.
      new ResizeObserver(([entry]) => {
        const width = Math.round(entry.contentRect.width);
        if (!element.isConnected || page.local[key] === width) return;
        page.local[key] = width;
        page.redraw();
      }).observe(element);
    }
    return nothing;
  }
}

/** @type {(page: Page, key: string) => unknown} */
export const measured = directive(/** @type {any} */ (Measured));
