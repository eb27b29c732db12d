// Comforts of the pages, and the page of a response that runs, which stays up to date: everything else works without.

for (const button of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) continue; // only over HTTPS and on loopback
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  });
}

const unfold = document.querySelector("[data-unfold]");
const reasoning = () => document.querySelectorAll(".reasoning:not([data-empty])");
const offerToUnfold = () => unfold && (unfold.hidden = !reasoning().length);
offerToUnfold();
unfold?.setAttribute("aria-pressed", "false");
unfold?.addEventListener("click", () => {
  const open = unfold.getAttribute("aria-pressed") === "false";
  unfold.setAttribute("aria-pressed", String(open));
  unfold.textContent = open ? "Fold reasoning" : "Unfold reasoning";
  for (const details of reasoning()) details.open = open;
});

const live = document.getElementById("live");
const isRunning = () => live?.firstElementChild.dataset.running === "true";

function replace(html) {
  const open = new Map([...live.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  const focused = live.contains(document.activeElement) ? document.activeElement : null;
  const kept = focused?.id || focused?.closest("details[id]")?.id;
  const { status } = live.firstElementChild.dataset;
  live.replaceChildren(document.createRange().createContextualFragment(html.trim()));
  for (const [id, wasOpen] of open) {
    const details = document.getElementById(id);
    if (details) details.open = wasOpen;
  }
  const found = kept && document.getElementById(kept);
  if (found) (found.querySelector(":scope > summary") ?? found).focus({ preventScroll: true });
  offerToUnfold();
  const now = live.firstElementChild.dataset.status;
  if (now !== status) document.getElementById("told").textContent = `It is ${now.replace("_", " ")} now.`;
}

async function look() {
  const url = new URL(location.href);
  url.searchParams.set("part", "live");
  const answer = await fetch(url, { redirect: "manual" });
  if (answer.ok) replace(await answer.text());
  else if (answer.status === 404 || answer.type === "opaqueredirect") location.reload(); // it, or the session, is gone
}

const seen = () =>
  new Promise((resolve) => {
    if (!document.hidden) return resolve();
    document.addEventListener("visibilitychange", resolve, { once: true });
  });

let pause = Number(live?.dataset.every);
while (isRunning()) {
  await new Promise((resolve) => setTimeout(resolve, pause));
  await seen();
  const began = performance.now();
  try {
    await look();
    pause = Math.max(Number(live.dataset.every), 5 * (performance.now() - began)); // a long log takes its time
  } catch {
    pause = Math.min(2 * pause, 30000); // the server is away
  }
}
