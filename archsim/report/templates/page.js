(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const options = { responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"] };
  for (const [id, figure] of Object.entries(figures)) {
    Plotly.newPlot(id, figure.data, figure.layout, options);
  }
  const resize = function () {
    for (const id of Object.keys(figures)) {
      Plotly.Plots.resize(document.getElementById(id));
    }
  };
  window.addEventListener("beforeprint", function () {
    for (const item of document.querySelectorAll("details")) {
      item.dataset.open = item.open;
      item.open = true;
    }
    resize();
  });
  window.addEventListener("afterprint", function () {
    for (const item of document.querySelectorAll("details")) {
      item.open = item.dataset.open === "true";
    }
    resize();
  });
})();
