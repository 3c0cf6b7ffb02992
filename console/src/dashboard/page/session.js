// Requests, and the person who sends them.
import { closed, toast } from "/dialogs.js";
import { $, set } from "/dom.js";

let known = {};

export const mayCommand = () => Boolean(known.commands && known.csrf);
const maySee = () => Boolean(known.csrf);
export const isLoggedOut = () => Boolean(known.required && !known.name);

// Shows an element only to people who may use it: "commands" to operators, "login" to everybody with a login.
export function gate(node, needs = "commands") {
  node.dataset.needs = needs;
  node.hidden = !(needs === "login" ? maySee() : mayCommand());
  return node;
}

export async function ask(path, options = {}) {
  const answer = await fetch(path, { credentials: "same-origin", ...options });
  if (!answer.ok) {
    const problem = await answer.json().catch(() => ({}));
    if (answer.status === 401) await session();
    throw new Error(problem.detail ?? `${answer.status} ${answer.statusText}`);
  }
  return answer.status === 204 ? null : answer.json();
}

// Reads what only people who are logged in may see.
export const askPrivately = (path) => ask(path, { headers: { "x-garenne-csrf": known.csrf ?? "" } });

// A command. Throws the error that the server names.
export function post(path, body) {
  const headers = { "content-type": "application/json", "x-garenne-csrf": known.csrf };
  return ask(path, { method: "POST", headers, body: JSON.stringify(body ?? {}) });
}

// Gives a command. `done` is the message after it. Returns the answer, or nothing after a failure.
export async function act(path, body, done) {
  if (!mayCommand() && !(await login())) return;
  try {
    const answer = await post(path, body);
    if (done) toast(answer?.remark ? `${done}. ${answer.remark}` : done);
    return answer ?? {};
  } catch (error) {
    toast(error.message, true);
  }
}

export async function session() {
  known = await ask("/api/session");
  const account = $("account"), none = !known.possible;
  account.disabled = none || known.by_proxy;
  account.title = none ? "Commands are disabled: the server has no login" : known.name ? `${known.name}, ${known.role}` : "";
  set(account, known.by_proxy ? known.name : known.name ? "Log out" : none ? "Read only" : "Log in");
  document.querySelectorAll("[data-needs]").forEach((node) => gate(node, node.dataset.needs));
  document.dispatchEvent(new Event("session"));
}

// Whether the person may give commands then. `viewing`: a login as a viewer is enough.
export async function login(viewing = false) {
  if (!known.possible) { toast("Commands are disabled: start the server with --operators", true); return false; }
  if (known.name && !viewing) { toast(`${known.name} may only view`, true); return false; }
  const named = known.with === "password";
  set($("login-text"), known.required ? "This dashboard shows nothing without a login." : "Commands and payloads need a login. Viewing does not.");
  set($("token-label"), named ? "Password" : "Admin token");
  $("name").hidden = $("name-label").hidden = !named;
  $("name").required = named;
  set($("login-error"), "");
  $("token").value = "";
  while ((await closed($("login"))) === "login") {
    try {
      const secret = $("token").value;
      const body = JSON.stringify(named ? { name: $("name").value, password: secret } : { token: secret });
      await ask("/api/login", { method: "POST", headers: { "content-type": "application/json" }, body });
      await session();
      return viewing ? known.name !== null : mayCommand();
    } catch (error) {
      set($("login-error"), error.message);
    } finally {
      $("token").value = "";
    }
  }
  return false;
}

$("account").addEventListener("click", async () => {
  if (known.name) {
    await post("/api/logout").then(() => toast("Logged out"), (error) => toast(error.message, true));
    if (known.required) location.reload();
    else await session();
  } else if (await login(true)) toast("Logged in");
});
