// Runs before the first paint, so that a chosen theme does not flash.
try {
  const theme = localStorage.getItem("deepinfer.theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch {
  // Without storage the system's theme is used.
}
