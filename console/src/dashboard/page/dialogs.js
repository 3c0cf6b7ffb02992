// Dialogs and short messages.
import { $, set, visible } from "/dom.js";

let timer;
export function toast(text, bad = false) {
  const node = $("toast");
  node.textContent = visible(text);
  node.className = "show" + (bad ? " bad" : "");
  clearTimeout(timer);
  timer = setTimeout(() => { node.className = bad ? "bad" : ""; }, bad ? 7000 : 3500);
}

// Opens a dialog and waits until it is closed. Returns the value of the button that closed it.
export function closed(dialog) {
  dialog.returnValue = "no";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

// `does`: the text of the button, a verb and what it acts on. `destroys`: what the button does cannot be undone.
export async function confirmed(title, text, does, destroys = false) {
  set($("confirm-title"), title);
  set($("confirm-text"), text);
  set($("confirm-yes"), does);
  $("confirm-yes").className = destroys ? "danger" : "primary";
  return (await closed($("confirm"))) === "yes";
}

// Enter activates the first submit button of a form, which must not be Cancel.
for (const cancel of document.querySelectorAll("dialog .cancel")) {
  cancel.addEventListener("click", () => cancel.closest("dialog").close("cancel"));
}
