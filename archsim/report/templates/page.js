(function () {
  "use strict";
  const figures = JSON.parse(document.getElementById("figures").textContent);
  for (const [id, figure] of Object.entries(figures)) {
    Plotly.newPlot(id, figure.data, figure.layout, { responsive: true, displayModeBar: false });
  }
  // On paper a figure is scaled as it stands: the width of the page is known too late to draw it anew.
  window.addEventListener("beforeprint", function () {
    for (const id of Object.keys(figures)) {
      const plot = document.getElementById(id);
      const box = plot.getBoundingClientRect();
      plot.style.aspectRatio = box.width + " / " + box.height;
      for (const svg of plot.querySelectorAll(".main-svg")) {
        svg.setAttribute("viewBox", "0 0 " + box.width + " " + box.height);
      }
    }
  });
  window.addEventListener("afterprint", function () {
    for (const id of Object.keys(figures)) {
      const plot = document.getElementById(id);
      plot.style.aspectRatio = "";
      for (const svg of plot.querySelectorAll(".main-svg")) {
        svg.removeAttribute("viewBox");
      }
      Plotly.Plots.resize(plot);
    }
  });
})();
