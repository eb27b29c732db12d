// Runs before the first paint: the theme that was chosen here before, or the system's; the list of chats, or none.
"use strict";

try {
  const theme = localStorage.getItem("respsite.theme");
  if (localStorage.getItem("respsite.chats") === "hidden") document.documentElement.dataset.chats = "hidden";
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is off: the system's theme counts.
}
