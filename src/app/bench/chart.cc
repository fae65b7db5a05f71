#include "app/bench/chart.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

namespace deepinfer::app {
namespace {

constexpr double kWidth = 760, kHeight = 480, kLeft = 80, kRight = 24, kTop = 48, kBottom = 64;
constexpr const char* kColours[] = {"#1f6feb", "#d1495b", "#2a9d8f", "#b5651d",
                                    "#6f42c1", "#e09f3e", "#3d405b", "#0b7285"};

std::string escaped(const std::string& text) {
  std::string out;
  for (char c : text) {
    if (c == '<')
      out += "&lt;";
    else if (c == '&')
      out += "&amp;";
    else
      out += c;
  }
  return out;
}

// 1, 2 or 5 times a power of ten, so that about five steps reach `max`.
double tick_step(double max) {
  const double raw = max / 5, power = std::pow(10, std::floor(std::log10(raw)));
  for (double m : {1.0, 2.0, 5.0}) {
    if (raw <= m * power) return m * power;
  }
  return 10 * power;
}

struct Axis {
  double step = 1, max = 1;
  explicit Axis(double largest) {
    if (!(largest > 0) || !std::isfinite(largest)) return;
    step = tick_step(largest);
    max = step * std::ceil(largest / step * 1.0001);
  }
};

std::string label_text(double x, double y, const char* anchor, const std::string& text, const char* more = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\"{}>{}</text>\n", x, y, anchor, more,
                     escaped(text));
}

}  // namespace

std::string to_svg(const Chart& chart) {
  double x_largest = 0, y_largest = 0;
  const auto shown = [](const ChartPoint& p) { return std::isfinite(p.x) && std::isfinite(p.y); };
  for (const ChartCurve& c : chart.curves) {
    for (const ChartPoint& p : c.points) {
      if (!shown(p)) continue;
      x_largest = std::max(x_largest, p.x);
      y_largest = std::max(y_largest, p.y);
    }
  }
  const Axis xs(x_largest), ys(y_largest);
  const auto px = [&](double x) { return kLeft + (kWidth - kLeft - kRight) * x / xs.max; };
  const auto py = [&](double y) { return kHeight - kBottom - (kHeight - kTop - kBottom) * y / ys.max; };
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:.0f}\" height=\"{1:.0f}\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
      "font-family=\"sans-serif\" font-size=\"12\" fill=\"#24292f\">\n<rect width=\"100%\" height=\"100%\" "
      "fill=\"#fff\"/>\n",
      kWidth, kHeight);
  out += label_text(kWidth / 2, 26, "middle", chart.title, " font-size=\"16\"");
  for (double t = 0; t <= xs.max * 1.0001; t += xs.step) {
    out += fmt::format("<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#e1e4e8\"/>\n", px(t), py(0), py(ys.max));
    out += label_text(px(t), py(0) + 18, "middle", fmt::format("{:.6g}", t));
  }
  for (double t = 0; t <= ys.max * 1.0001; t += ys.step) {
    out += fmt::format("<path d=\"M{0:.1f} {1:.1f}H{2:.1f}\" stroke=\"#e1e4e8\"/>\n", px(0), py(t), px(xs.max));
    out += label_text(px(0) - 8, py(t) + 4, "end", fmt::format("{:.6g}", t));
  }
  out += label_text(kWidth / 2, kHeight - 18, "middle", chart.x_title);
  out += label_text(18, kHeight / 2, "middle", chart.y_title,
                    fmt::format(" transform=\"rotate(-90 18 {:.0f})\"", kHeight / 2).c_str());
  for (size_t i = 0; i < chart.curves.size(); ++i) {
    const ChartCurve& curve = chart.curves[i];
    const char* colour = kColours[i % std::size(kColours)];
    std::string path, marks;
    for (const ChartPoint& p : curve.points) {
      if (!shown(p)) continue;
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", px(p.x), py(p.y));
      marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" fill=\"{}\"/>\n", px(p.x), py(p.y), colour);
      marks += label_text(px(p.x) + 7, py(p.y) - 7, "start", p.label);
    }
    out += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"2\"/>\n", path, colour) + marks;
    const double y = kTop + 4 + 18 * static_cast<double>(i);
    out += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n",
                       kWidth - kRight - 190, y, colour);
    out += label_text(kWidth - kRight - 172, y + 10, "start", curve.name);
  }
  return out + "</svg>\n";
}

}  // namespace deepinfer::app
