// The governor on modelled devices: what drafts bring, and that they never cost more than a little.
#include "sched/draft_governor.h"

#include <gtest/gtest.h>

#include <functional>
#include <random>

namespace deepinfer::sched {
namespace {

constexpr int kDrafts = 5;

struct Device {
  std::function<double(int)> forward;
  double host_s = 20e-6, gap_s = 10e-6, sample_s = 2e-6;
  double round_s = 100e-6, sequence_s = 200e-6, feed = 0.03;
  double noise = 0;  // of each time, and now and then one that is ten times as long
};

// Chance that a draft comes true if those before it did; by request and its age in tokens.
using Chance = std::function<double(int request, int64_t token)>;

struct Traffic {
  int requests = 1;
  int tokens = 100000;   // of all
  int answer = 1 << 30;  // tokens after which a request is followed by another
  Chance text = nullptr, model = nullptr;
  bool text_matches = false;
};

struct Outcome {
  double over_plain = 0;  // seconds of plain steps for the same tokens, over those it took
  double drafted_share = 0;
};

class Simulation {
 public:
  Simulation(const Device& device, const Traffic& traffic) : device_(device), traffic_(traffic), random_(7) {}

  Outcome run() {
    DraftCosts costs;
    for (const int rows : {1, 2, 3, 4, 5, 6, 8, 16, 32, 64}) costs.forward.push_back({rows, device_.forward(rows)});
    if (traffic_.model) {
      costs.round_s = device_.round_s;
      costs.sequence_s = device_.sequence_s;
      costs.feed = device_.feed;
    }
    DraftGovernor governor(costs, {.drafts_max = kDrafts, .rows_max = 256});
    const int n = traffic_.requests;
    states_.assign(static_cast<size_t>(n), {});
    double seconds = 0, plain_seconds = 0;
    int64_t all = 0, steps = 0, drafting = 0;
    DraftChoice choice;
    bool serial = false;
    while (all < traffic_.tokens) {
      // The step.
      DraftStep s{.requests = n, .rows = n, .fed = choice.feed && traffic_.model != nullptr, .serial = serial};
      for (State& r : states_) {
        const bool verifies = serial && choice.way != DraftWay::kPlain && r.drafts > 0;
        r.verified = verifies ? r.drafts : 0;
        r.accepted = 0;
        while (r.accepted < r.verified && comes(r, r.by_model)) ++r.accepted;
        s.rows += r.verified;
        s.model |= r.verified > 0 && r.by_model;
        s.tokens += 1 + r.accepted;
        r.fed = s.fed ? r.fed + 1 + r.accepted : 0;
      }
      s.forward_s = jitter(device_.forward(s.rows) * (s.fed ? 1 + device_.feed : 1));
      s.sample_s = jitter(device_.sample_s * s.tokens);
      s.host_s = jitter(device_.host_s);
      for (State& r : states_) {
        r.asks =
            traffic_.model && s.fed && r.fed >= 16 && (r.asked || (choice.probe && (choice.probe_all || r.said < 0)));
        s.drafting += r.asks;
      }
      s.draft_s = s.drafting == 0 ? 0 : jitter(device_.round_s + device_.sequence_s * s.drafting);
      s.interval_s = s.forward_s + s.sample_s + s.draft_s + jitter(device_.gap_s) + (serial ? s.host_s : 0);
      seconds += s.interval_s;
      plain_seconds += (device_.forward(n) + device_.sample_s * n + device_.gap_s) * s.tokens / n;
      all += s.tokens;
      ++steps;
      drafting += s.rows > n;
      if (s.drafting > 0) governor.observe_round(s.drafting, s.draft_s);
      governor.observe(s);
      after(governor, &choice, &serial);
    }
    return {plain_seconds / seconds, static_cast<double>(drafting) / static_cast<double>(steps)};
  }

 private:
  struct State {
    int drafts = 0, verified = 0, accepted = 0, fed = 0, first_rounds = 0;
    int64_t tokens = 0;
    bool by_model = false, asks = false, asked = false;
    double said = -1;  // what the drafter itself promises of a draft
    double text_tried = 2, text_came = 1;
    std::array<double, kDrafts> tried = {}, came = {};
  };

  bool comes(const State& r, bool model) {
    const auto request = static_cast<int>(&r - states_.data());
    const Chance& chance = model ? traffic_.model : traffic_.text;
    return chance && std::uniform_real_distribution<>()(random_) < chance(request, r.tokens);
  }

  double jitter(double s) {
    if (device_.noise == 0) return s;
    const double x = std::uniform_real_distribution<>(-1, 1)(random_);
    return s * (1 + device_.noise * x) * (random_() % 200 == 0 ? 10 : 1);
  }

  void judge_model(DraftGovernor& governor, State& r, int judged, int accepted) {
    for (int j = 0; j < std::min(judged, accepted + 1); ++j) {
      const auto at = static_cast<size_t>(j);
      r.tried[at] = 0.9 * r.tried[at] + 1;
      r.came[at] = 0.9 * r.came[at] + (j < accepted);
    }
    if (r.first_rounds++ < 4) governor.learn(0, judged, accepted);
  }

  void after(DraftGovernor& governor, DraftChoice* choice, bool* serial) {
    governor.begin();
    for (State& r : states_) {
      r.tokens += 1 + r.accepted;
      if (r.verified > 0 && r.by_model) judge_model(governor, r, r.verified, r.accepted);
      if (traffic_.text) {
        const bool right = r.verified > 0 && !r.by_model ? r.accepted > 0 : comes(r, false);
        r.text_tried = 0.95 * r.text_tried + 1;
        r.text_came = 0.95 * r.text_came + right;
      }
      if (r.asks) r.said = traffic_.model(static_cast<int>(&r - states_.data()), r.tokens);
      if (r.asks && !r.asked) {  // as if the tokens it is compared with came at once
        int accepted = 0;
        while (accepted < kDrafts && comes(r, true)) ++accepted;
        judge_model(governor, r, kDrafts, accepted);
      }
      if (r.tokens > traffic_.answer) r = {.fed = governor.feeds_prompts(0) ? 64 : 0};
      std::array<float, kDrafts> text = {}, model = {};
      float survival = 1;
      for (float& a : text) a = survival *= static_cast<float>(r.text_came / r.text_tried);
      const std::span<const float> prior = governor.prior(0);
      survival = 1;
      const size_t models = r.said >= 0 ? kDrafts : prior.size();
      for (size_t j = 0; j < models; ++j) {
        const double usual = r.said >= 0 ? r.said : j == 0 ? prior[0] : prior[j] / prior[j - 1];
        model[j] = survival *= static_cast<float>((r.came[j] + 2 * usual) / (r.tried[j] + 2));
      }
      governor.add({.text = std::span<const float>(text).first(traffic_.text ? kDrafts : 0),
                    .model = std::span<const float>(model).first(models),
                    .ready = r.fed >= 16});
    }
    // A step that is under way when drafts are chosen has none.
    *serial = choice->way != DraftWay::kPlain || choice->wait;
    *choice = governor.choose();
    for (size_t i = 0; i < states_.size(); ++i) {
      State& r = states_[i];
      r.by_model = choice->way == DraftWay::kModel && r.asks && governor.asks_model(i);
      r.asked = governor.asks_model(i);
      r.drafts = r.by_model || traffic_.text ? kDrafts : 0;
    }
  }

  const Device device_;
  const Traffic traffic_;
  std::mt19937 random_;
  std::vector<State> states_;
};

// Rows cost nearly as much as steps, as on a CPU with a small model.
Device rows_cost() {
  return {.forward = [](int rows) { return 300e-6 + 200e-6 * rows; }};
}
Device rows_are_free() {
  return {.forward = [](int rows) { return 4e-3 + 20e-6 * rows; }, .host_s = 200e-6, .sequence_s = 20e-6};
}

Chance always(double p) {
  return [p](int, int64_t) { return p; };
}

TEST(DraftGovernor, NeverCostsMuchWhereDraftsDoNotPay) {
  for (const double noise : {0.0, 0.2}) {
    for (const int requests : {1, 8, 32}) {
      for (const double p : {0.0, 0.3, 0.6}) {
        Device d = rows_cost();
        d.noise = noise;
        const Outcome o =
            Simulation(d, {.requests = requests, .answer = 60, .text = always(p), .model = always(p)}).run();
        // Noise lengthens every way alike, so the plain seconds of the comparison are without it.
        const double lengthened = noise == 0 ? 1 : 1 + 9.0 / 200;
        EXPECT_GT(o.over_plain * lengthened, 0.98) << requests << " requests, chance " << p << ", noise " << noise;
      }
    }
  }
}

TEST(DraftGovernor, FindsWhatPays) {
  // Text drafts that come true pay at batch 1 even here, and a good drafter as well.
  EXPECT_GT(Simulation(rows_cost(), {.text = always(0.95)}).run().over_plain, 1.3);
  EXPECT_GT(Simulation(rows_cost(), {.answer = 60, .model = always(0.97)}).run().over_plain, 1.2);
  for (const int requests : {1, 8, 32}) {
    EXPECT_GT(Simulation(rows_are_free(), {.requests = requests, .answer = 200, .model = always(0.7)}).run().over_plain,
              1.4)
        << requests;
  }
}

// One request in three has a good drafter: those are found, and the others cost little.
TEST(DraftGovernor, TellsRequestsApart) {
  const Chance mixed = [](int request, int64_t) { return request == 0 ? 0.97 : 0.4; };
  const Traffic t{.requests = 3, .answer = 100, .model = mixed};
  EXPECT_GT(Simulation(rows_are_free(), t).run().over_plain, 1.3);
}

TEST(DraftGovernor, LearnsEachKindOfRequestApart) {
  DraftGovernor governor({.forward = {{1, 300e-6}, {6, 750e-6}}, .round_s = 100e-6, .sequence_s = 100e-6},
                         {.drafts_max = kDrafts, .rows_max = 6});
  EXPECT_TRUE(governor.prior(0).empty());
  for (int i = 0; i < 40; ++i) governor.learn(1, kDrafts, kDrafts);
  EXPECT_TRUE(governor.prior(0).empty()) << "what tools show says nothing of chats";
  for (int i = 0; i < 40; ++i) governor.learn(0, kDrafts, 0);
  ASSERT_EQ(governor.prior(1).size(), static_cast<size_t>(kDrafts));
  EXPECT_GT(governor.prior(1)[4], 0.8f);
  EXPECT_LT(governor.prior(0)[0], 0.1f);
}

TEST(DraftGovernor, FollowsWhatChanges) {
  const Chance turns_bad = [](int, int64_t token) { return token < 50000 ? 0.97 : 0.1; };
  const Outcome bad = Simulation(rows_cost(), {.tokens = 400000, .model = turns_bad}).run();
  EXPECT_GT(bad.over_plain, 1.02);
  EXPECT_LT(bad.drafted_share, 0.2);
  const Chance turns_good = [](int, int64_t token) { return token < 50000 ? 0.1 : 0.97; };
  EXPECT_GT(Simulation(rows_cost(), {.tokens = 400000, .model = turns_good}).run().over_plain, 1.15);
}

// Plain steps are planned behind the one before where that costs nothing, however wrong the first times are.
TEST(DraftGovernor, WaitsWhereThatIsFree) {
  for (const double longer : {1.0, 1.1}) {
    DraftGovernor governor({.forward = {{1, 300e-6}, {6, 900e-6}}}, {.drafts_max = kDrafts, .rows_max = 6});
    bool serial = false;
    int waited = 0;
    for (int i = 0; i < 4000; ++i) {
      const double disturbed = i < 30 ? 1 + i % 7 : 1;
      const double seconds = disturbed * 310e-6 * (serial ? longer : 1);
      governor.observe({.requests = 1, .rows = 1, .tokens = 1, .interval_s = seconds, .forward_s = seconds - 10e-6,
                        .serial = serial});
      governor.begin();
      governor.add({});
      const DraftChoice c = governor.choose();
      EXPECT_EQ(c.way, DraftWay::kPlain);
      serial = c.wait;
      if (i >= 2000) waited += serial;
    }
    if (longer == 1) {
      EXPECT_GT(waited, 1900);
    } else {
      EXPECT_LT(waited, 100);
    }
  }
}

// Of many requests the hopes are asked for now and then only, and more rarely while they are not worth it.
TEST(DraftGovernor, LooksSeldomAtMany) {
  DraftGovernor governor({.forward = {{1, 300e-6}, {64, 9e-3}}}, {.drafts_max = kDrafts, .rows_max = 64});
  std::vector<int> looks;
  for (int i = 1; i <= 256; ++i) {
    governor.observe({.requests = 32, .rows = 32, .tokens = 32, .interval_s = 5e-3, .forward_s = 4.9e-3});
    if (governor.looks(32)) looks.push_back(i);
    EXPECT_TRUE(governor.looks(2));
    governor.begin();
    for (int r = 0; r < 32; ++r) governor.add({});
    governor.choose();
  }
  EXPECT_EQ(looks, std::vector<int>({16, 48, 112, 176, 240}));
}

TEST(DraftGovernor, WithoutACurveDraftsStayOff) {
  DraftGovernor governor({}, {});
  for (int i = 0; i < 100; ++i) {
    governor.observe({.requests = 1, .rows = 1, .tokens = 1, .interval_s = 1e-3, .forward_s = 1e-3});
    governor.begin();
    const float sure[] = {1, 1, 1};
    governor.add({.text = sure, .model = sure, .ready = true});
    EXPECT_EQ(governor.choose().way, DraftWay::kPlain);
  }
}

}  // namespace
}  // namespace deepinfer::sched
