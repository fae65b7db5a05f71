// A line chart as SVG: one or more curves of labelled points, axes from zero with round ticks.
//
//   Chart chart{.title = "Decode", .x_title = "tokens/s of one answer", .y_title = "tokens/s of all answers"};
//   chart.curves.push_back({"128 tokens of prompt", {{52.1, 52.1, "1"}, {40.3, 80.6, "2"}}});
//   std::string svg = to_svg(chart);
#pragma once

#include <string>
#include <vector>

namespace deepinfer::app {

struct ChartPoint {
  double x = 0, y = 0;
  std::string label;
};

struct ChartCurve {
  std::string name;
  std::vector<ChartPoint> points;  // joined in this order
};

struct Chart {
  std::string title, x_title, y_title;
  std::vector<ChartCurve> curves;
};

// Values that are not finite are left out. At most 8 curves have colours of their own.
std::string to_svg(const Chart& chart);

}  // namespace deepinfer::app
