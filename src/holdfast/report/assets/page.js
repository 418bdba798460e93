"use strict";
(() => {
  const { figures } = JSON.parse(document.getElementById("data").textContent);
  const divs = [...document.querySelectorAll("[data-plot]")];
  const narrow = window.matchMedia("(max-width: 640px)");
  const dark = window.matchMedia("(prefers-color-scheme: dark)");

  // plotly is most of the page, so it is stored compressed; the policy of the page allows this script by its hash
  const loaded = async () => {
    const bytes = Uint8Array.from(atob(document.getElementById("plotly").textContent), (c) => c.charCodeAt(0));
    const plain = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    const script = document.createElement("script");
    script.textContent = await new Response(plain).text();
    document.head.append(script);
  };

  const themed = (layout) => {
    const css = getComputedStyle(document.documentElement);
    const value = (name) => css.getPropertyValue(name).trim();
    const size = narrow.matches ? 11 : 13;
    const axis = (given) => ({
      gridcolor: value("--line"), zerolinecolor: value("--line"), linecolor: value("--line"), ...given,
      title: { ...given?.title, font: { size }, standoff: 10 },
    });
    const axes = ["xaxis", "yaxis", ...Object.keys(layout).filter((name) => /^[xy]axis\d/.test(name))];
    return {
      ...layout,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: css.fontFamily, size, color: value("--muted") },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: value("--muted"), activecolor: value("--accent") },
      hoverlabel: { bgcolor: value("--card"), bordercolor: value("--line"), font: { color: value("--ink") } },
      ...Object.fromEntries(axes.map((name) => [name, axis(layout[name])])),
    };
  };

  window.plotOptions = (filename) => ({
    responsive: true,
    displaylogo: false,
    // named one by one, and no server: plotly's own choice includes a button that uploads the figure
    modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
    showSendToCloud: false,
    plotlyServerURL: "",
    toImageButtonOptions: { format: "svg", filename },
  });

  const draw = () => divs.forEach((div) => {
    const { data, layout, filename } = figures[Number(div.dataset.plot)];
    Plotly.react(div, data, themed(layout), window.plotOptions(filename));
  });

  const toggle = (button) => {
    const open = button.getAttribute("aria-expanded") !== "true";
    button.setAttribute("aria-expanded", String(open));
    button.closest("tbody").querySelectorAll("tr.seed").forEach((row) => { row.hidden = !open; });
  };

  // the lines that a cell shows, so that a note or an interval stands apart from the number
  const cellText = (cell) => [...cell.querySelectorAll(":scope > small, :scope > .note")]
    .reduce((text, part) => text.replace(part.textContent, ` ${part.textContent}`), cell.textContent)
    .replace(/[▸▾]/g, "").replace(/\s+/g, " ").trim();
  const rowsOf = (table) => [...table.rows].filter((row) => !row.hidden)
    .map((row) => [...row.cells].map(cellText));

  const csv = (rows) => rows.map((row) => row.map((text) => `"${text.replaceAll('"', '""')}"`).join(",")).join("\r\n");

  const SPECIAL = {
    "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "±": "$\\pm$", "−": "$-$",
    "–": "--", "✗": "$\\times$", "<": "$<$", ">": "$>$",
  };
  const escaped = (text) => text.replace(/[\\~^±−–✗<>]/g, (c) => SPECIAL[c]).replace(/[&%$#_{}]/g, (c, at, whole) => {
    const made = Object.values(SPECIAL).some((tex) => {
      for (let from = whole.indexOf(tex); from >= 0; from = whole.indexOf(tex, from + 1)) {
        if (from <= at && at < from + tex.length) return true;
      }
      return false;
    });
    return made ? c : `\\${c}`;
  });
  const latex = (rows) => {
    const [head, ...body] = rows.map((row) => `${row.map(escaped).join(" & ")} \\\\`);
    const columns = `l${"r".repeat(rows[0].length - 1)}`;
    return [`\\begin{tabular}{${columns}}`, "\\toprule", head, "\\midrule", ...body, "\\bottomrule", "\\end{tabular}"]
      .join("\n");
  };

  const copied = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // an older browser, or one that gives files no clipboard
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };

  const FORMATS = { csv, latex };
  document.querySelectorAll("button[data-copy]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const table = button.closest(".tabled").querySelector("table");
      await copied(FORMATS[button.dataset.copy](rowsOf(table)));
      const name = button.textContent;
      button.textContent = "copied";
      setTimeout(() => { button.textContent = name; }, 1500);
    });
  });

  const saving = () => document.querySelectorAll("button[data-save]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", () => {
      const div = button.closest("figure").querySelector(".js-plotly-plot");
      const { width, height } = div.getBoundingClientRect();
      Plotly.downloadImage(div, { format: "svg", width, height, filename: button.dataset.save });
    });
  });

  document.querySelectorAll("button.seeds").forEach((button) => {
    toggle(button); // without scripts every seed stays in view
    button.addEventListener("click", () => toggle(button));
    button.disabled = false;
  });

  const start = async () => {
    await loaded();
    draw();
    const again = window.explorers(themed);
    saving();
    for (const query of [dark, narrow]) query.addEventListener("change", () => { draw(); again(); });
    // a figure in a folded part has no width until it is opened; paper has another width than the screen
    const charts = () => document.querySelectorAll(".js-plotly-plot");
    window.addEventListener("beforeprint", () => charts().forEach((div) => Plotly.Plots.resize(div)));
  };
  start().catch((error) => {
    document.getElementById("undrawn").hidden = false;
    throw error;
  });
})();
