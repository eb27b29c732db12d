// The page of a roll-out: generations open in their place, and a token tells of itself under the mouse, a finger or the
// keyboard. Without this, links lead to the same on a new page, and titles say the most important.

const tip = document.body.appendChild(document.createElement("div"));
tip.id = "ro-tip";
tip.className = "ro-tip";
tip.setAttribute("role", "tooltip");
tip.hidden = true;
let shown = null;

function line(list, name, value, className = "") {
  const [term, text] = [document.createElement("dt"), document.createElement("dd")];
  term.textContent = name;
  text.textContent = value;
  text.className = className;
  list.append(term, text);
}

function tell(token) {
  const { id, at, told, weights, tops } = token.dataset;
  const list = document.createElement("dl");
  line(list, "text", token.textContent, "ro-tip-text");
  line(list, "token", `${id}, at ${at}`);
  if (told) line(list, "log probability", told);
  if (weights) line(list, "weights", weights);
  for (const [text, other, value] of JSON.parse(tops ?? "[]")) line(list, text, `${value}, token ${other}`, "");
  tip.replaceChildren(list);
  tip.hidden = false;
  place(token);
  shown = token;
}

function place(token) {
  const box = token.getClientRects()[0];
  if (!box) return;
  const { width, height } = tip.getBoundingClientRect();
  const isAbove = box.top - height - 8 > 0 && box.bottom + height + 8 > innerHeight;
  tip.style.left = `${Math.max(8, Math.min(box.left, innerWidth - width - 8))}px`;
  tip.style.top = `${isAbove ? box.top - height - 6 : box.bottom + 6}px`;
}

function hush() {
  tip.hidden = true;
  shown = null;
}

// One token of a text can be reached by Tab, and the others from it by the arrows.
function prepare(root) {
  for (const text of root.querySelectorAll("[data-text]")) {
    for (const token of text.querySelectorAll(".t")) {
      token.removeAttribute("title");
      token.tabIndex = -1;
      token.setAttribute("aria-describedby", tip.id);
    }
    const first = text.querySelector(".ro-here ~ .ro-other .t") ?? text.querySelector(".t");
    if (first) first.tabIndex = 0;
  }
}

function follow(text, from, to) {
  if (!to) return;
  from.tabIndex = -1;
  to.tabIndex = 0;
  to.focus();
}

const tokenOf = (event) => event.target.closest?.("[data-text] .t");
document.addEventListener("pointerover", (event) => {
  const token = tokenOf(event);
  if (token) tell(token);
  else if (shown && shown !== document.activeElement) hush();
});
document.addEventListener("focusin", (event) => (tokenOf(event) ? tell(tokenOf(event)) : hush()));
document.addEventListener("focusout", (event) => tokenOf(event) && hush());
document.addEventListener("scroll", () => shown && place(shown), { capture: true, passive: true });
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") return hush();
  const token = tokenOf(event);
  if (!token || event.ctrlKey || event.metaKey || event.altKey) return;
  const text = token.closest("[data-text]");
  const tokens = [...text.querySelectorAll(".t")];
  const here = tokens.indexOf(token);
  const to = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: tokens.length - 1 }[event.key];
  const line = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (to === undefined && line === undefined) return;
  event.preventDefault();
  follow(text, token, line === undefined ? tokens[to] : nextLine(tokens, here, line));
});

function nextLine(tokens, here, step) {
  const { top, left } = tokens[here].getBoundingClientRect();
  let best = null;
  for (let at = here + step; tokens[at]; at += step) {
    const box = tokens[at].getBoundingClientRect();
    if (Math.abs(box.top - top) < 4) continue;
    if (best && Math.abs(box.top - best.top) >= 4) break;
    if (!best || Math.abs(box.left - left) < Math.abs(best.left - left)) best = { at, top: box.top, left: box.left };
  }
  return best && tokens[best.at];
}

// Links to tokens are followed in their place.
async function load(link, into) {
  const url = new URL(link.href);
  url.searchParams.set("part", "tokens");
  into.classList.add("ro-busy");
  try {
    const answer = await fetch(url, { redirect: "manual" });
    if (!answer.ok) return location.assign(link.href); // that page says why
    const html = await answer.text();
    into.replaceChildren(document.createRange().createContextualFragment(html.trim()));
    history.replaceState(null, "", link.href);
    prepare(into);
  } catch {
    location.assign(link.href);
  } finally {
    into.classList.remove("ro-busy");
  }
}

document.addEventListener("click", async (event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey || event.altKey || event.button) return;
  const token = tokenOf(event);
  if (token) {
    const text = token.closest("[data-text]");
    return follow(text, text.querySelector(".t[tabindex='0']") ?? token, token);
  }
  const link = event.target.closest?.("a[data-open], a[data-part]");
  const into = link?.closest(".ro-row")?.querySelector(".ro-tokens");
  if (!into) return;
  event.preventDefault();
  if (link.matches("[data-part]")) {
    const name = link.textContent;
    await load(link, into);
    const same = [...into.querySelectorAll("a[data-part]")].find((each) => each.textContent === name);
    (same ?? into.querySelector("a[data-part]"))?.focus({ preventScroll: true });
    return;
  }
  const isOpen = link.getAttribute("aria-expanded") === "true";
  link.setAttribute("aria-expanded", String(!isOpen));
  if (isOpen) into.replaceChildren();
  else await load(link, into);
});

prepare(document);
