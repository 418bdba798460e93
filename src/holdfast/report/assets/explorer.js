// A map of features for each element with data-explorer: a choice of the model, a slider along the attack, and the
// image of the chosen sample, which follows the pointer or the two buttons.
"use strict";
window.explorers = (themed) => {
  const { explorers } = JSON.parse(document.getElementById("data").textContent);
  const drawn = [];

  const loaded = (sheet) => {
    if (!sheet) return null;
    const image = new Image();
    image.src = sheet.src;
    return { ...sheet, image };
  };

  const paint = (canvas, sheet, row) => {
    const across = sheet.across;
    canvas.width = sheet.width;
    canvas.height = sheet.height;
    const context = canvas.getContext("2d");
    const x = (row % across) * sheet.width;
    const y = Math.floor(row / across) * sheet.height;
    const put = () => context.drawImage(sheet.image, x, y, sheet.width, sheet.height, 0, 0, sheet.width, sheet.height);
    if (sheet.image.complete) put();
    else sheet.image.addEventListener("load", put, { once: true });
  };

  const extent = (rows) => {
    const all = rows.flat();
    const [low, high] = [Math.min(...all), Math.max(...all)];
    const pad = 0.05 * (high - low) || 1;
    return [low - pad, high + pad];
  };

  const start = (root) => {
    const data = explorers[Number(root.dataset.explorer)];
    const find = (name) => root.querySelector(`[data-part=${name}]`);
    const [select, slider, output, chart] = ["model", "step", "reached", "chart"].map(find);
    const sheets = { clean: loaded(data.clean), moved: data.models.map((model) => loaded(model.moved)) };
    const members = new Map(data.classes.map((k) => [k, data.y.flatMap((y, row) => (y === k ? [row] : []))]));
    let chosen = 0;

    const model = () => data.models[Number(select.value)];
    const frame = () => Number(slider.value);

    const trace = (k) => {
      const { x, y, labels } = model();
      const [rows, t] = [members.get(k), frame()];
      return {
        type: "scatter", mode: "markers", name: `class ${k}`, showlegend: false,
        x: rows.map((row) => x[t][row]), y: rows.map((row) => y[t][row]), customdata: rows,
        marker: {
          color: data.colors[k], size: rows.map((row) => (labels[t][row] === k ? 7 : 9)),
          symbol: rows.map((row) => (labels[t][row] === k ? "circle" : "x")), line: { width: 0 },
        },
        hovertemplate: rows.map((row) => `sample ${data.index[row]}<extra></extra>`),
      };
    };

    // the legend shows colors by circles and what a cross means, whatever the first point of a class is
    const key = (name, color, symbol) => ({
      type: "scatter", mode: "markers", name, x: [null], y: [null], hoverinfo: "skip", marker: { color, symbol, size: 7 },
    });
    const keys = [
      ...data.classes.map((k) => key(`class ${k}`, data.colors[k], "circle")), key("misclassified", "#7a8794", "x"),
    ];

    const clean = () => ({
      type: "scatter", mode: "markers", name: "clean", x: model().x[0], y: model().y[0], hoverinfo: "skip",
      marker: { color: "#7a8794", size: 4, opacity: 0.45 },
    });

    const way = () => ({
      type: "scatter", mode: "lines+markers", showlegend: false, hoverinfo: "skip",
      x: model().x.slice(0, frame() + 1).map((at) => at[chosen]), y: model().y.slice(0, frame() + 1).map((at) => at[chosen]),
      line: { color: "#7a8794", width: 1.5 },
      marker: { color: "rgba(0,0,0,0)", size: 15, line: { width: model().x.slice(0, frame() + 1).map((_, t) => (t === frame() ? 2 : 0)), color: "#7a8794" } },
    });

    const describe = () => {
      const { name, attack, steps, labels } = model();
      const [t, y] = [frame(), data.y[chosen]];
      const word = (label) => `${label}${label === y ? "" : " ✗"}`;
      find("sample").textContent = `Sample ${data.index[chosen]}, class ${y}`;
      find("labels").textContent = `${select.options[select.selectedIndex].text} says ${word(labels[0][chosen])} clean, `
        + `${word(labels[t][chosen])} after ${steps[t]} steps of ${attack}.`;
      for (const kind of ["clean", "moved"]) {
        const sheet = kind === "clean" ? sheets.clean : sheets.moved[Number(select.value)];
        find(kind).hidden = !sheet;
        if (sheet) paint(find(kind).querySelector("canvas"), sheet, chosen);
      }
      find("moved").querySelector("figcaption").textContent = `after ${steps[steps.length - 1]} steps`;
    };

    const draw = () => {
      const { x, y, steps, attack, seed } = model();
      output.textContent = `${steps[frame()]} of ${steps[steps.length - 1]} steps of ${attack}; map of seed ${seed}`;
      slider.setAttribute("aria-valuetext", output.textContent);
      const bare = (rows) => ({
        range: extent(rows), showgrid: false, showticklabels: false, showline: false, zeroline: false, ticks: "",
      });
      const layout = themed({
        xaxis: bare(x), yaxis: bare(y), height: 460, hovermode: "closest", uirevision: select.value,
        margin: { l: 8, r: 8, t: 8, b: 8 }, legend: { orientation: "h", y: -0.02 },
      });
      Plotly.react(chart, [clean(), way(), ...data.classes.map(trace), ...keys], layout, window.plotOptions(data.title));
      describe();
    };

    const choose = (row) => {
      if (row === chosen) return;
      chosen = row;
      Plotly.react(chart, [clean(), way(), ...data.classes.map(trace), ...keys], chart.layout, window.plotOptions(data.title));
      describe();
    };

    const step = (by) => () => choose((chosen + by + data.y.length) % data.y.length);
    find("previous").addEventListener("click", step(-1));
    find("next").addEventListener("click", step(1));
    select.addEventListener("change", () => { slider.max = model().x.length - 1; draw(); });
    slider.addEventListener("input", draw);
    slider.max = model().x.length - 1;
    slider.value = slider.max;
    // the first sample that the attack moves into another class
    const { labels } = model();
    chosen = Math.max(0, data.y.findIndex((y, row) => labels[0][row] === y && labels[labels.length - 1][row] !== y));
    draw();
    chart.on("plotly_hover", ({ points }) => { if (points[0].customdata !== undefined) choose(points[0].customdata); });
    drawn.push(draw);
  };

  document.querySelectorAll("[data-explorer]").forEach(start);
  return () => drawn.forEach((draw) => draw());
};
