"use strict";
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const divs = [...document.querySelectorAll("[data-plot]")];
  const narrow = window.matchMedia("(max-width: 640px)");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  const themed = (layout) => {
    const css = getComputedStyle(document.documentElement);
    const value = (name) => css.getPropertyValue(name).trim();
    const size = narrow.matches ? 11 : 13;
    const axis = (given) => ({
      gridcolor: value("--line"), zerolinecolor: value("--line"), linecolor: value("--line"), ...given,
      title: { ...given?.title, font: { size }, standoff: 10 },
    });
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css.fontFamily, size, color: value("--muted") },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: value("--muted"), activecolor: value("--accent") },
      hoverlabel: { bgcolor: value("--card"), bordercolor: value("--line"), font: { color: value("--ink") } },
      xaxis: axis(layout.xaxis),
      yaxis: axis(layout.yaxis),
    };
  };

  const draw = () => divs.forEach((div) => {
    const { data, layout, filename } = figures[Number(div.dataset.plot)];
    Plotly.react(div, data, themed(layout), {
      responsive: true,
      displaylogo: false,
      // named one by one, and no server: plotly's own choice includes a button that uploads the figure
      modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
      showSendToCloud: false,
      plotlyServerURL: "",
      toImageButtonOptions: { format: "svg", filename },
    });
  });

  const toggle = (button) => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    button.closest("tbody").querySelectorAll("tr.seed").forEach((row) => { row.hidden = !open; });
  };
  document.querySelectorAll("button.seeds").forEach((button) => {
    toggle(button); // without scripts every seed stays in view
    button.addEventListener("click", () => toggle(button));
    button.disabled = false;
  });

  draw();
  dark.addEventListener("change", draw);
  narrow.addEventListener("change", draw);
})();
