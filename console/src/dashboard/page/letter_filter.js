// The filter of the dead letters. The list, the counts and the commands follow it; it is in the address.
import { parameter, remember } from "/address.js";
import { $, button, h, keyed, label } from "/dom.js";

// The conditions that a chip shows. The text is in the field of the search.
const CONDITIONS = { kind: "kind", reason: "reason", group: "group", error_like: "error" };
// Time without a key until the server searches: it reads the whole queue.
const TYPING = 500;

let filter = {}, changed = () => {}, typing;

export const isFiltered = () => Object.keys(filter).length > 0;
export const filterOf = () => ({ ...filter });

const words = ([name, value]) => name === "text" ? `with "${value}" in them` : `${CONDITIONS[name]} ${value || "none"}`;

// A filter as part of a sentence.
export const filterWords = (of = filter) => Object.entries(of).map(words).join(", ");

function draw() {
  const chips = Object.entries(filter).filter(([name]) => name in CONDITIONS);
  keyed($("dead-filter"), chips, (it) => it.join(" "), ([name, value]) => {
    const chip = h("span", "chip"), text = words([name, value]);
    chip.append(h("span", "", text), label(button("×", "small", () => refine({ [name]: null })), `Remove the filter ${text}`));
    return chip;
  }, () => {});
  $("clear-filter").hidden = !isFiltered();
}

// Changes conditions; null removes one.
export function refine(conditions) {
  filter = Object.fromEntries(Object.entries({ ...filter, ...conditions }).filter(([, value]) => value !== null));
  const address = Object.fromEntries([...Object.keys(CONDITIONS), "text"].map((name) => [`letter-${name}`, filter[name] === "" ? "none" : filter[name]]));
  remember({ ...address, page: null }, true);
  show();
  changed();
}

function show() {
  if (document.activeElement !== $("dead-search")) $("dead-search").value = filter.text ?? "";
  draw();
}

// A button that adds conditions.
export function conditionButton(text, css, conditions) {
  const node = button(text, `condition ${css}`, () => refine(conditions));
  return label(node, `Only letters with ${Object.entries(conditions).map(words).join(", ")}`);
}

// The state of the address. `act` is called when the person changes the filter.
export function readFilter(act) {
  changed = act;
  filter = {};
  for (const name of [...Object.keys(CONDITIONS), "text"]) {
    const value = parameter(`letter-${name}`, null);
    if (value !== null) filter[name] = name === "error_like" && value === "none" ? "" : value;
  }
  show();
}

$("dead-search").addEventListener("input", () => {
  clearTimeout(typing);
  typing = setTimeout(() => refine({ text: $("dead-search").value.trim() || null }), TYPING);
});
$("clear-filter").addEventListener("click", () => {
  $("dead-search").value = "";
  refine({ kind: null, reason: null, group: null, error_like: null, text: null });
});
