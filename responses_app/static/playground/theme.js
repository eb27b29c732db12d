// Runs before the first paint: the theme that was chosen here before, or the system's.
"use strict";

try {
  const theme = localStorage.getItem("respsite.theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  // Storage is off: the system's theme counts.
}
