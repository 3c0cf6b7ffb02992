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

// The accessible name of an element whose visible text alone is ambiguous.
export function label(node, text) {
  const shown = visible(text);
  if (node.getAttribute("aria-label") !== shown) node.setAttribute("aria-label", shown);
  return node;
}

export function button(text, css, act) {
  const node = h("button", css, text);
  node.type = "button";
  node.addEventListener("click", act);
  return node;
}

// A moment as text, in the local zone: 28 Nov 2026, 23:51.
export const moment = (at, options = { dateStyle: "medium", timeStyle: "short" }) => new Date(at).toLocaleString("en-GB", options);

// A time: the text may be relative, the tooltip and `datetime` are absolute. `at` is in milliseconds since 1970.
export function setTime(node, at, text) {
  set(node, text);
  const iso = Number.isFinite(at) ? new Date(at).toISOString() : "";
  if (node.dateTime === iso) return;
  node.dateTime = iso;
  node.title = iso ? moment(at, { dateStyle: "medium", timeStyle: "long" }) : "";
}

// A new element with a time.
export function timeOf(at, text) {
  const node = h("time");
  setTime(node, at, text);
  return node;
}

// A row of a table. `cells` are [column, css, text or element]. The roles stay where a narrow screen shows the row as a
// block, and the column's name stands before the value there.
export function tr(...cells) {
  const row = h("tr");
  row.setAttribute("role", "row");
  for (const [column, css, content] of cells) {
    const cell = h("td", css);
    cell.setAttribute("role", "cell");
    cell.dataset.name = column;
    if (content instanceof Node) cell.append(content);
    else if (content !== undefined) set(cell, content);
    row.append(cell);
  }
  return row;
}

// Keeps one element per item: creates, updates and removes elements. An element moves only if the order changed. An
// element with the focus keeps it; if it is removed, its section gets the focus.
export function keyed(box, items, key, make, update) {
  box.made ??= new Map();
  const wanted = new Map(items.map((item) => [key(item), item])), focused = document.activeElement;
  const hadFocus = focused !== document.body && box.contains(focused);
  for (const [name, node] of box.made) {
    if (!wanted.has(name)) { node.remove(); box.made.delete(name); }
  }
  let place = box.firstElementChild;
  for (const [name, item] of wanted) {
    let node = box.made.get(name);
    if (!node) box.made.set(name, (node = make(item)));
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else box.insertBefore(node, place);
  }
  if (hadFocus && document.activeElement !== focused) (focused.isConnected ? focused : box.closest("section"))?.focus({ preventScroll: true });
}

export function tip(text, event) {
  const node = $("tip");
  node.hidden = text === null;
  if (text === null) return;
  node.textContent = text;
  const left = Math.max(0, Math.min(event.clientX + 14, innerWidth - node.offsetWidth - 8));
  node.style.left = left + "px";
  node.style.top = event.clientY + 14 + "px";
}
