#include "engine/speculation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/row_batch.h"
#include "sched/draft_calibration.h"

namespace deepinfer::engine {
namespace {

constexpr float kForgetOwn = 0.9f;    // of how often an answer's drafts came true
constexpr int kManyAnswers = 16;      // in a step: of more, every fourth is enough to learn from
constexpr int64_t kManyShare = 4;
constexpr float kModelWeight = 2;     // of what is usual beside the answer's own rounds, in drafts that come true
constexpr float kSurest = 0.995f;
constexpr size_t kSureAnswers = 2;    // in a step, whose certainty is followed: it takes a look at all logits
constexpr int kFirstRounds = 4;       // of an answer, which the prior is made of
constexpr int kReadyRows = 16;        // in the drafter's rings, for a round of the usual quality

// Sizes of the curve. The first ones are measured several times; where steps are slow, some are left out.
constexpr int kSizes[] = {1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256, 512};
constexpr size_t kSizesAlways = 5;
constexpr int kTurns = 6, kTwice = 32;
constexpr double kSlowSeconds = 0.5;

int sequence_of(const StepJob& job, size_t i) {
  return static_cast<int>(job.sequence_of_row[static_cast<size_t>(job.plan->samples[i].logits_row)]);
}

}  // namespace

Speculation::Speculation(const DraftOptions& options, const ExecutorInfo& info, const sched::DraftCosts& costs,
                         bool overlap)
    : options_(options),
      drafts_max_(std::min(options.drafts_max, DraftState::kDraftsMax)),
      model_drafts_(options.model ? std::min(drafts_max_, info.drafts_max) : 0),
      rows_max_(std::min(info.rows_max, info.outputs_max)),
      step_drafts_max_(options.step_drafts_max > 0 ? options.step_drafts_max : rows_max_),
      governor_(costs, {.drafts_max = drafts_max_, .rows_max = rows_max_}),
      overlap_(overlap),
      ahead_(enabled() && options.ahead && overlap),
      waits_(fixed() && !ahead_),
      feeds_(fixed() && model_drafts_ > 0) {}

// The answer's text so far, prompt included.
void Speculation::know_text(Answer& a, sched::Scheduler& scheduler) {
  DraftState& d = *a.drafts;
  if (!options_.text || d.text_known) return;
  const Request& r = a.live.request;
  d.text.push(scheduler.tokens(a.id));
  d.text_known = true;
  if (!options_.history || !r.cache) return;
  d.history = histories_.of(r.tenant);
  d.history_at = std::min(r.prompt.size(), d.text.size());
}

// What has been said since the last time, where it is looked for.
void Speculation::enter_text(Answer& a) {
  DraftState& d = *a.drafts;
  d.text.enter();
  if (d.history && (!many_ || a.id % kManyShare == 0)) d.history->append(d.text.text(), d.history_at);
  d.history_at = d.text.size();
}

void Speculation::answer_ended(Answer& a) {
  if (a.drafts != nullptr && a.drafts->history) enter_text(a);
}

const TextGuess& Speculation::guess_text(Answer& a) {
  DraftState& d = *a.drafts;
  if (!d.guessed) {
    enter_text(a);
    d.guess = chances_.guess(d.text, d.history.get(),
                             {.most = limit_of(a), .lean = d.lean.value(), .least = least_});
  }
  d.guessed = true;
  return d.guess;
}

// What drafts of the model's next round usually come to: by how sure the model has been in this answer, or else what
// the last round promised, or what others had.
void Speculation::expect_usual(Answer& a) const {
  DraftState& d = *a.drafts;
  DraftState::Usual& u = d.asked;
  u.bin = d.sure_known ? ModelChances::bin_of(d.sure) : -1;
  if (u.bin >= 0) {
    u.count = model_drafts_;
    model_chances_.usual(u.bin, std::span<float>(u.chance).first(static_cast<size_t>(u.count)));
    return;
  }
  const std::span<const float> prior =
      d.has_said ? std::span<const float>(d.said) : governor_.prior(kind_of(a.live.request));
  u.count = std::min<int>(model_drafts_, static_cast<int>(prior.size()));
  float before = 1;
  for (size_t j = 0; j < static_cast<size_t>(u.count); ++j) {
    u.chance[j] = before > 0 ? prior[j] / before : 0;
    before = prior[j];
  }
}

// Survivals of a round of the model's drafter, as far as they are known before it: the usual ones, and how much more or
// less often this answer's own drafts came true.
int Speculation::model_hope(Answer& a, std::span<float> out) const {
  DraftState& d = *a.drafts;
  expect_usual(a);
  float survival = 1;
  for (size_t j = 0; j < static_cast<size_t>(d.asked.count); ++j) {
    const float lean = (d.model_came[j] + kModelWeight) / (d.model_expected[j] + kModelWeight);
    survival *= std::min(kSurest, d.asked.chance[j] * lean);
    out[j] = survival;
  }
  return d.asked.count;
}

// The drafter's rings hold enough of it, this step's rows included.
bool Speculation::ready(const StepJob& job, size_t i) {
  const model::StepSequence& s = job.plan->step.sequences[static_cast<size_t>(sequence_of(job, i))];
  if (!job.plan->step.feeds_drafter || s.id != job.plan->samples[i].id) return false;
  const int known = s.first_position + s.count - s.decoder_begin;
  return s.first_position + s.count - std::max(s.decoder_begin, s.draft_begin) >= std::min(kReadyRows, known);
}

std::span<const int32_t> Speculation::drafted(const StepJob& job, size_t i) {
  if (job.drafts == 0 || !job.wants_drafts[i]) return {};
  const auto n = static_cast<size_t>(job.drafts);
  const std::span<const int32_t> all = std::span<const int32_t>(job.draft_tokens).subspan(i * n, n);
  return all.first(static_cast<size_t>(std::ranges::find_if(all, [](int32_t t) { return t < 0; }) - all.begin()));
}

void Speculation::start_step(StepJob& job) {
  job.wants_certainty = model_drafts_ > 0 && !fixed() && job.answers.size() <= kSureAnswers;
  if (model_drafts_ == 0 || !job.plan->step.feeds_drafter) return;
  bool may_probe = choice_.probe;
  for (size_t i = 0; i < job.answers.size(); ++i) {
    const Answer* a = job.answers[i];
    if (a == nullptr || a->drafts == nullptr) continue;
    const DraftState& d = *a->drafts;
    const bool probed = may_probe && (choice_.probe_all || !d.has_said) && !d.model_shadow.alive() && ready(job, i);
    if (!(fixed() ? d.text_streak < kTextStreak : d.asks_model || probed)) continue;
    job.wants_drafts[i] = 1;
    job.drafts = model_drafts_;
    if (probed && job.answers.size() > kSureAnswers) may_probe = false;  // each of many would cost as much
  }
}

void Speculation::judge_text(DraftState& d, const TextGuess& g, int judged, int accepted) {
  chances_.learn(g, judged, accepted);
  d.lean.learn(g, judged, accepted);
}

void Speculation::judge_model(Answer& a, int judged, int accepted) {
  DraftState& d = *a.drafts;
  for (int j = 0; j < std::min({judged, accepted + 1, d.round.count}); ++j) {
    const auto at = static_cast<size_t>(j);
    d.model_expected[at] = d.model_expected[at] * kForgetOwn + d.round.chance[at];
    d.model_came[at] = d.model_came[at] * kForgetOwn + static_cast<float>(j < accepted);
  }
  if (d.round.bin >= 0) model_chances_.learn(d.round.bin, judged, accepted);
  if (d.model_rounds++ < kFirstRounds) governor_.learn(kind_of(a.live.request), judged, accepted);
}

void Speculation::judge_confidence(const DraftState& d, int verified, int accepted) {
  if (!d.has_newest) return;
  float before = 1;  // the chance to get here
  for (int j = 0; j < std::min(verified, accepted + 1); ++j) {
    const float here = d.newest[static_cast<size_t>(j)];
    stats_.confidence_error += std::abs((before > 0 ? here / before : 0) - static_cast<float>(j < accepted));
    ++stats_.confidence_judged;
    before = here;
  }
}

// What became of the drafts that this step verified, and of those that were only compared.
void Speculation::learn_of(const StepJob& job, size_t i, Answer& a) {
  DraftState& d = *a.drafts;
  const std::span<const int32_t> tokens = job.tokens_of(i);
  if (tokens.empty()) return;
  if (d.text_known) {
    d.text.push(tokens);
    d.guessed = false;
  }
  const int verified = job.plan->samples[i].rows - 1, accepted = static_cast<int>(tokens.size()) - 1;
  if (verified > 0) {
    stats_.verify_rows += verified;
    for (int j = 0; j < std::min(verified, accepted + 1); ++j) {
      ++stats_.verified[static_cast<size_t>(j)];
      stats_.accepted[static_cast<size_t>(j)] += j < accepted;
    }
    if (d.source == DraftSource::kModel) {
      model_verified_ = true;
      judge_model(a, verified, accepted);
      judge_confidence(d, verified, accepted);
      if (options_.on_round)
        options_.on_round(std::span<const float>(d.confidence).first(static_cast<size_t>(d.count)), verified, accepted);
    } else if (d.source == DraftSource::kText) {
      judge_text(d, d.guess, verified, accepted);
      ++stats_.text_rounds;
      stats_.text_accepted += accepted;
    }
  }
  for (const int32_t t : tokens) {
    DraftState::Shadow& text = d.text_shadow;
    if (text.alive() && !text.follow(t)) judge_text(d, d.shadow_guess, text.judged, text.accepted);
    DraftState::Shadow& model = d.model_shadow;
    if (model.alive() && !model.follow(t)) judge_model(a, model.judged, model.accepted);
  }
  for (const float c : job.certainty_of(i)) d.sure = ModelChances::follow(d.sure, c);
  d.sure_known = job.wants_certainty;
}

void Speculation::learn(StepJob& job) {
  if (job.learnt) return;
  job.learnt = true;
  many_ = std::ssize(job.answers) > kManyAnswers;
  model_verified_ = false;
  if (!fixed()) least_ = static_cast<float>(governor_.least_chance(static_cast<int>(job.answers.size())));
  for (size_t i = 0; i < job.answers.size(); ++i) {
    stats_.turns += job.token_count[i] > 0;
    stats_.tokens += job.token_count[i];
    if (job.answers[i] != nullptr && job.answers[i]->drafts != nullptr) learn_of(job, i, *job.answers[i]);
  }
}

void Speculation::measure(const StepJob& job, const Now& now, bool prompts) {
  const model::StepPlan& step = job.plan->step;
  const double done_s = job.at.sampled + job.draft_s;
  int tokens = 0, drafting = 0;
  const bool placed_step = step.tokens.size() > step.sequences.size() || (drafting_now_ && job.draft_s > 0);
  if (job.draft_s > 0) drafting = static_cast<int>(std::ranges::count(job.wants_drafts, 1));
  if (drafting > 0) governor_.observe_round(drafting, job.draft_s);
  if (!prompts && !step.tokens.empty() && !job.isolated) {
    for (const uint32_t n : job.token_count) tokens += static_cast<int>(n);
    governor_.observe({.requests = static_cast<int>(step.sequences.size()),
                       .rows = static_cast<int>(step.tokens.size()),
                       .tokens = tokens,
                       .interval_s = last_drawn_s_ >= 0 ? done_s - last_drawn_s_ : 0,
                       .forward_s = job.at.ready - job.at.started,
                       .sample_s = job.sample_s,
                       .draft_s = job.draft_s,
                       .host_s = last_host_s_ > 0 ? now.host_s - last_host_s_ : 0,
                       .drafting = drafting,
                       .fed = step.feeds_drafter && model_drafts_ > 0,
                       .serial = ahead_ ? placed_step : overlap_ ? serial_ : drafting_now_,
                       .model = model_verified_});
  }
  last_drawn_s_ = step.tokens.empty() ? -1 : done_s;
  last_host_s_ = now.host_s;
}

// Text drafts that are only compared, and the model's of a probe.
void Speculation::shadow(const StepJob& job, size_t i, Answer& a) {
  DraftState& d = *a.drafts;
  const bool placed = ahead_ && drafting_now_;  // drafts of this round are verified already, not compared
  if (d.guessed && !d.text_shadow.alive() && !(placed && d.source == DraftSource::kText)) {
    d.shadow_guess = d.guess;
    d.text_shadow = {.tokens = d.guess.tokens, .count = d.guess.count};
  }
  const std::span<const int32_t> drafts = drafted(job, i);
  if (drafts.empty()) return;
  const auto n = static_cast<size_t>(job.drafts);
  sched::draft_survival(std::span<const float>(job.draft_confidence).subspan(i * n, n), options_.temperatures,
                        std::span<float>(d.said).first(n));
  d.has_said = true;
  d.round = d.asked;
  if (placed && d.source == DraftSource::kModel) return;
  std::ranges::copy(drafts, d.model_shadow.tokens.begin());
  d.model_shadow.count = static_cast<int>(drafts.size());
  d.model_shadow.judged = d.model_shadow.accepted = 0;
}

// Nothing hangs on what this step's answers hope for.
bool Speculation::rests(const StepJob& job) const {
  if (fixed() || drafting_now_ || job.drafts > 0 || governor_.looks(static_cast<int>(job.answers.size()))) return false;
  for (int kind = 0; kind < sched::DraftGovernor::kKinds; ++kind) {
    if (governor_.feeds_prompts(kind)) return false;
  }
  return true;
}

void Speculation::decide(StepJob& job, sched::Scheduler& scheduler, bool prompts) {
  drafting_.clear();
  governor_.begin();
  bool young = false;
  const bool rests = this->rests(job);
  const bool looks = !rests && (fixed() || (ahead_ && drafting_now_) ||
                                governor_.looks(static_cast<int>(job.answers.size())));
  for (size_t i = 0; i < job.answers.size(); ++i) {
    Answer* a = job.answers[i];
    if (a == nullptr || a->drafts == nullptr || a->ended || job.token_count[i] == 0) continue;
    if (rests) {
      governor_.add({});
      continue;
    }
    DraftState& d = *a->drafts;
    know_text(*a, scheduler);
    if (options_.text && looks) guess_text(*a);
    shadow(job, i, *a);
    std::array<float, DraftState::kDraftsMax> model = {};
    const int models = std::min(limit_of(*a), model_hope(*a, model));
    governor_.add({.text = d.guessed ? d.guess.known() : std::span<const float>(),
                   .model = std::span<const float>(model).first(static_cast<size_t>(models)),
                   .ready = ready(job, i)});
    young = young || (a->usage.output_tokens < kYoung && governor_.feeds_prompts(kind_of(a->live.request)));
    drafting_.push_back(i);
  }
  if (fixed()) return;
  choice_ = governor_.choose();
  for (size_t k = 0; k < drafting_.size(); ++k) job.answers[drafting_[k]]->drafts->asks_model = governor_.asks_model(k);
  feeds_ = model_drafts_ > 0 && (choice_.feed || young || prompt_feed_ > 0);
  if (!prompts && scheduler.stats().waiting == 0 && prompt_feed_ > 0) --prompt_feed_;
}

// The drafts of the next round, and what is expected of them. False: there are none.
bool Speculation::propose(const StepJob& job, size_t i, Answer& a) {
  DraftState& d = *a.drafts;
  d.older = d.newest;
  d.has_older = d.has_newest;
  d.source = DraftSource::kNone;
  d.count = 0;
  float expected = 0;
  if (const std::span<const int32_t> drafts = drafted(job, i); !drafts.empty()) {
    const auto n = static_cast<size_t>(job.drafts);
    const std::span<const float> confidence = std::span<const float>(job.draft_confidence).subspan(i * n, n);
    d.source = DraftSource::kModel;
    d.count = std::min(static_cast<int>(drafts.size()), limit_of(a));
    d.model_shadow.count = 0;
    std::ranges::copy(drafts, d.tokens.begin());
    std::ranges::copy(confidence, d.confidence.begin());
    sched::draft_survival(confidence, options_.temperatures, std::span<float>(d.newest).first(n));
    for (int j = 0; j < d.count; ++j) expected += d.newest[static_cast<size_t>(j)];
    ++stats_.rounds;
  }
  if (options_.text) {
    const TextGuess& g = guess_text(a);
    if (g.count > 0 && std::accumulate(g.survivals.begin(), g.survivals.begin() + g.count, 0.0f) > expected) {
      d.source = DraftSource::kText;
      d.count = g.count;
      d.tokens = g.tokens;
      d.newest = d.older = g.survivals;  // known before any of them was made
      d.has_older = true;
      d.text_shadow.count = 0;
    }
  }
  d.text_streak = d.source == DraftSource::kText ? d.text_streak + 1 : 0;
  d.has_newest = d.count > 0;
  stats_.drafted += d.count;
  return d.count > 0;
}

bool Speculation::verify(StepJob& job, sched::Scheduler& scheduler) {
  lengths_.begin();
  bool any = false;
  for (const size_t i : drafting_) {
    Answer& a = *job.answers[i];
    any |= propose(job, i, a);
    const DraftState& d = *a.drafts;
    const auto n = static_cast<size_t>(d.count);
    lengths_.add({.drafts = d.count,
                  .tokens = a.usage.prompt_tokens + a.usage.output_tokens,
                  .newest = d.has_newest ? std::span<const float>(d.newest).first(n) : std::span<const float>(),
                  .older = d.has_older ? std::span<const float>(d.older).first(n) : std::span<const float>()});
  }
  if (!any) return false;
  static const sched::StepTime kAll;
  const std::span<const int> lengths =
      lengths_.choose(
          fixed() ? kAll : governor_.time(), {.rows_max = rows_max_, .drafts_max = step_drafts_max_});
  for (size_t k = 0; k < drafting_.size(); ++k) {
    const Answer& a = *job.answers[drafting_[k]];
    const auto n = static_cast<size_t>(lengths[k]);
    stats_.saved_rows += a.drafts->count - lengths[k];
    (void)scheduler.set_drafts(a.id, std::span<const int32_t>(a.drafts->tokens).first(n)).ok();
  }
  return true;
}

void Speculation::end_step(StepJob& job, sched::Scheduler& scheduler, const Now& now) {
  bool prompts = false;
  for (const model::StepSequence& s : job.plan->step.sequences) prompts |= s.kind == model::RowKind::kPrefill;
  stats_.draft_s += job.draft_s;
  measure(job, now, prompts);
  ++(drafting_now_ ? stats_.steps_on : stats_.steps_off);
  decide(job, scheduler, prompts);
  const bool drafts = drafting_now_ = fixed() || choice_.way != sched::DraftWay::kPlain;
  if (ahead_) {
    if (drafts) keep_rows(job, scheduler);
    scheduler.set_feeds_drafter(feeds_);
    return;
  }
  serial_ = !now.next_runs;
  // A round that is there has been paid for, whatever the next one would bring.
  if ((drafts || job.drafts > 0) && !now.next_runs) {
    drafting_now_ = verify(job, scheduler) || drafts;
  } else {
    for (const size_t i : drafting_) job.answers[i]->drafts->has_newest = false;
  }
  waits_ = drafting_now_ || choice_.wait;
  scheduler.set_feeds_drafter(feeds_);
}

sched::DraftCosts draft_costs(StepExecutor& executor, const DraftOptions& options) {
  using Clock = std::chrono::steady_clock;
  sched::DraftCosts costs;
  if (options.mode != DraftMode::kConfidence) return costs;
  if (options.costs) return *options.costs;
  const ExecutorInfo& info = executor.info();
  const int sequences = std::min({info.sequences_max, info.slots, info.blocks});
  const int rows_max = std::min({info.rows_max, info.outputs_max, sequences * (1 + options.drafts_max)});
  const int drafts = options.model ? std::min(options.drafts_max, info.drafts_max) : 0;
  const std::vector<int32_t> history(static_cast<size_t>(info.history_tokens), ops::kNoToken);
  bool failed = false;
  const auto seconds = [&](const auto& run) {
    const auto begin = Clock::now();
    failed = !run() || failed;
    return std::chrono::duration<double>(Clock::now() - begin).count();
  };
  // Rows of one sequence as far as a request goes, then of more.
  const auto forward_s = [&](int rows, bool feeds) {
    model::StepPlan plan;
    plan.feeds_drafter = feeds;
    const int used = std::min(sequences, (rows + options.drafts_max) / (1 + options.drafts_max));
    for (int s = 0; s < used; ++s) {
      const int count = rows / used + (s < rows % used);
      const std::vector<int32_t> tokens(static_cast<size_t>(count), 1);
      const std::array<int32_t, 1> block = {s};
      plan.add_sequence({.id = s, .slot = s, .kind = model::RowKind::kVerify, .outputs = count}, tokens, history,
                        block);
    }
    return seconds([&] { return executor.forward(plan).ok() && executor.logits(rows).ok(); });
  };
  const auto round_s = [&](int count) {
    model::DraftPlan plan{.drafts = drafts, .sequences = {}};
    for (int s = 0; s < count; ++s) plan.sequences.push_back({.id = s, .slot = s, .position = 0, .token = 1});
    std::vector<int32_t> tokens(static_cast<size_t>(count * drafts));
    std::vector<float> confidence(tokens.size());
    return seconds([&] { return executor.draft(plan, {}, tokens, confidence).ok(); });
  };
  // Others on the machine disturb single runs: the least of several, of all sizes in turns.
  std::vector<int> sizes;
  for (const int rows : kSizes) {
    if (rows <= rows_max) sizes.push_back(rows);
  }
  const size_t always = std::min(sizes.size(), kSizesAlways);
  std::vector<double> least(sizes.size(), std::numeric_limits<double>::infinity());
  double fed = std::numeric_limits<double>::infinity(), one = fed, many = fed;
  const int more = std::min(sequences, 4);
  const auto begin = Clock::now();
  const auto slow = [&] { return std::chrono::duration<double>(Clock::now() - begin).count() > kSlowSeconds; };
  for (int turn = 0; turn < kTurns && !failed && (turn == 0 || !slow()); ++turn) {
    for (size_t i = 0; i < always; ++i) {
      if (i == 0 || i + 1 == always || !slow()) least[i] = std::min(least[i], forward_s(sizes[i], false));
    }
    if (drafts == 0) continue;
    fed = std::min(fed, forward_s(1, true));
    if (turn == 0) forward_s(more, true);  // a row of each is there to draft from
    one = std::min(one, round_s(1));
    many = std::min(many, round_s(more));
  }
  for (size_t i = always; i < sizes.size() && !failed && !slow(); ++i) {
    least[i] = forward_s(sizes[i], false);
    if (sizes[i] <= kTwice) least[i] = std::min(least[i], forward_s(sizes[i], false));
  }
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (std::isfinite(least[i])) costs.forward.push_back({sizes[i], least[i]});
  }
  if (drafts > 0 && !failed) {
    costs.feed = std::clamp(fed / least[0] - 1, 0.0, 0.2);
    costs.sequence_s = more > 1 ? std::max(0.0, (many - one) / (more - 1)) : one;
    costs.round_s = std::max(0.0, one - costs.sequence_s);
  }
  if (failed) return {};
  return costs;
}

}  // namespace deepinfer::engine
