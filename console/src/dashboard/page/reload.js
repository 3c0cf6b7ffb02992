// Loads the page again if one of its scripts or styles could not be loaded: the network changed, or the dashboard restarted.
addEventListener("error", (event) => {
  if (event.target.matches?.("script, link[rel=stylesheet]")) setTimeout(() => location.reload(), 2000);
}, true);
