// Tables that are sorted by a column. The order is in the address.
import { parameter, remember } from "/address.js";
import { button, h, keyed, set } from "/dom.js";

// Numbers by size, texts by their words and numbers. What is missing comes last.
function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined || a === "") return 1;
  if (b === null || b === undefined || b === "") return -1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

// Where rows are blocks, shows only the cells that are brief, and a button that unfolds the others.
export function foldable(row, brief) {
  if (!brief.includes(true)) return row;
  brief.forEach((isBrief, n) => { if (isBrief) row.children[n].dataset.brief = ""; });
  const cell = h("td", "fold"), fold = button("More", "small", () => {
    const isOpen = row.classList.toggle("unfolded");
    set(fold, isOpen ? "Less" : "More");
    fold.setAttribute("aria-expanded", isOpen);
  });
  cell.setAttribute("role", "cell");
  cell.dataset.name = cell.dataset.brief = "";
  fold.setAttribute("aria-expanded", false);
  cell.append(fold);
  row.append(cell);
  return row;
}

export class Table {
  // `columns` are {title, css, of, head, hide}. One with `of`, the value to sort by, can be sorted. `head` is an element
  // that takes the place of the title; with `hide` only screen readers have the title. Where rows are blocks, a row shows
  // only cells with `brief` until it is unfolded.
  constructor(node, name, columns, redraw) {
    Object.assign(this, { node, columns, redraw, parameter: `sort-${name}` });
    node.setAttribute("role", "table");
    const head = node.createTHead(), row = head.insertRow();
    this.body = node.createTBody();
    for (const group of [head, this.body]) group.setAttribute("role", "rowgroup");
    row.setAttribute("role", "row");
    this.heads = columns.map((column) => {
      const cell = h("th", column.css);
      cell.scope = "col";
      cell.setAttribute("role", "columnheader");
      if (column.head) cell.append(column.head);
      else if (column.of) cell.append(button(column.title, "sort", () => this.next(column)));
      else cell.append(h("span", column.hide ? "hidden" : "", column.title));
      row.append(cell);
      return cell;
    });
    this.read();
  }

  // The order of the address.
  read() {
    const text = parameter(this.parameter, ""), down = text.startsWith("-");
    const column = this.columns.find(({ title, of }) => of && title === (down ? text.slice(1) : text));
    this.order = column ? { column, down } : null;
    this.mark();
  }

  // A column is sorted one way, then the other way, then not. Numbers begin with the largest.
  next(column) {
    const first = column.css?.split(" ").includes("n") ?? false, order = this.order;
    if (order?.column !== column) this.order = { column, down: first };
    else this.order = order.down === first ? { column, down: !first } : null;
    remember({ [this.parameter]: this.order && (this.order.down ? "-" : "") + column.title });
    this.mark();
    this.redraw();
  }

  mark() {
    this.columns.forEach((column, n) => {
      if (column.of) this.heads[n].setAttribute("aria-sort", this.order?.column !== column ? "none" : this.order.down ? "descending" : "ascending");
    });
  }

  sorted(items) {
    if (!this.order) return items;
    const { column, down } = this.order, known = (value) => value !== null && value !== undefined && value !== "";
    return items.toSorted((a, b) => {
      const [first, second] = [column.of(a), column.of(b)];
      return compare(first, second) * (down && known(first) && known(second) ? -1 : 1);
    });
  }

  draw(items, key, make, update) {
    this.node.hidden = items.length === 0;
    keyed(this.body, this.sorted(items), key, (item) => foldable(make(item), this.columns.map(({ brief }) => brief)), update);
  }
}
