// What the pages' scripts share. All text is set as text, never as HTML.
export const $ = (id) => document.getElementById(id);

// Publishers choose ids, kinds and errors. Hidden and bidirectional characters are shown as escapes, so that two texts
// cannot look the same. Requests to the server contain the exact text.
const hidden = /[\p{Cc}\p{Zl}\p{Zp}\p{Bidi_Control}\p{Default_Ignorable_Code_Point}\ufff9-\ufffb]/gu;
export const visible = (text) => String(text).replace(hidden, (it) => /\p{Variation_Selector}/u.test(it) ? it : `\\u{${it.codePointAt(0).toString(16)}}`);

export function h(tag, css, text) {
  const node = document.createElement(tag);
  if (css) node.className = css;
  if (text !== undefined) node.textContent = visible(text);
  return node;
}

export function set(node, text) {
  const shown = visible(text ?? "");
  if (node.textContent !== shown) node.textContent = shown;
}

export function tip(text, event) {
  const node = $("tip");
  node.hidden = text === null;
  if (text === null) return;
  node.textContent = text;
  const left = Math.min(event.clientX + 14, innerWidth - node.offsetWidth - 8);
  node.style.left = left + "px";
  node.style.top = event.clientY + 14 + "px";
}
