// Keeps the page of a response that runs up to date: it asks for the part that changes, and puts it in place.
const live = document.getElementById("live");
const told = document.getElementById("told");

const part = () => live.firstElementChild;
const isRunning = () => part().dataset.running === "true";

function replace(html) {
  const open = new Map([...live.querySelectorAll("details[id]")].map((each) => [each.id, each.open]));
  const focused = live.contains(document.activeElement) ? document.activeElement.id : "";
  const status = part().dataset.status;
  live.replaceChildren(document.createRange().createContextualFragment(html.trim()));
  for (const [id, wasOpen] of open) {
    const details = document.getElementById(id);
    if (details) details.open = wasOpen;
  }
  if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  if (part().dataset.status !== status) told.textContent = `It is ${part().dataset.status.replace("_", " ")} now.`;
}

async function look() {
  const url = new URL(location.href);
  url.searchParams.set("part", "live");
  const answer = await fetch(url, { redirect: "error" });
  if (answer.ok) replace(await answer.text());
  else if (answer.status === 404) location.reload();
}

const seen = () =>
  new Promise((resolve) => {
    if (!document.hidden) return resolve();
    document.addEventListener("visibilitychange", resolve, { once: true });
  });

let pause = Number(live.dataset.every);
while (isRunning()) {
  await new Promise((resolve) => setTimeout(resolve, pause));
  await seen();
  const began = performance.now();
  try {
    await look();
    pause = Math.max(Number(live.dataset.every), 5 * (performance.now() - began)); // a long log takes its time
  } catch {
    pause = Math.min(2 * pause, 30000); // the server is away, or the session is over
  }
}
