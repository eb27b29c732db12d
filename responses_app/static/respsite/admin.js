// Two comforts of the pages: everything also works without.
"use strict";

for (const button of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) continue; // only over HTTPS and on loopback
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  });
}

for (const button of document.querySelectorAll("[data-unfold]")) {
  const folded = document.querySelectorAll(".reasoning:not([data-empty])");
  if (!folded.length) continue;
  button.hidden = false;
  button.setAttribute("aria-pressed", "false");
  button.addEventListener("click", () => {
    const open = button.getAttribute("aria-pressed") === "false";
    button.setAttribute("aria-pressed", String(open));
    button.textContent = open ? "Fold reasoning" : "Unfold reasoning";
    for (const details of folded) details.open = open;
  });
}
