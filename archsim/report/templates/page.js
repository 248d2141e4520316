(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  for (const [id, figure] of Object.entries(figures)) {
    Plotly.newPlot(id, figure.data, figure.layout, { responsive: true, displayModeBar: false });
  }
  const resize = function () {
    for (const id of Object.keys(figures)) {
      Plotly.Plots.resize(document.getElementById(id));
    }
  };
  window.matchMedia("print").addEventListener("change", resize);
  window.addEventListener("afterprint", resize);
})();
