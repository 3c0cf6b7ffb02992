// The page's state in its address, so that a link shows the same: range, filter, layout, order, page of letters.
const given = () => new URLSearchParams(location.search);

export const parameter = (name, fallback) => given().get(name) ?? fallback;

// The address with other parameters. One without a value is left out.
export function addressWith(values) {
  const query = given();
  for (const [name, value] of Object.entries(values)) {
    if (value === null || value === undefined || value === "") query.delete(name);
    else query.set(name, value);
  }
  const text = query.toString();
  return location.pathname + (text ? `?${text}` : "") + location.hash;
}

// `step`: the browser's Back returns to the state before.
export function remember(values, step = false) {
  history[step ? "pushState" : "replaceState"](null, "", addressWith(values));
}
