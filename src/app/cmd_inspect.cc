// deepinfer inspect DIR: what a checkpoint holds, and where its parts would live on this machine.
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "app/commands.h"
#include "app/run/printer.h"
#include "base/format.h"
#include "base/memory.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/machine.h"
#include "checkpoint/placement.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/store/predict.h"
#include "engine/weights.h"
#include "recipe/json.h"

namespace deepinfer::app {
namespace {

namespace ckpt = deepinfer::checkpoint;
using ckpt::Group;
using ckpt::LayerInfo;
using ckpt::Tier;
using recipe::Json;

struct InspectFlags {
  std::string directory;
  bool json = false;
  std::string digest = "fast";
  double gpu_gb = -1;
  double ram_gb = -1;
  std::vector<std::string> place;
  bool predict = false;
  std::string ram;
};

// What decoding will be like within a budget.
struct Forecast {
  uint64_t budget = 0;  // of memory for weights
  std::optional<ckpt::StorePlan> plan;  // none: all weights fit
  ckpt::StoreRates rates;
  ckpt::DecodePrediction decode;
};

struct Inspection {
  const ckpt::Checkpoint* checkpoint;
  ckpt::ModelSizes sizes;
  ckpt::Machine machine;
  ckpt::PlacementBudget budget;
  ckpt::PlacementPlan plan;
  std::vector<std::string> warnings;
  std::string digest;
  std::vector<std::pair<std::string, std::string>> file_sums;  // only with --digest full
  std::optional<Forecast> forecast;                            // only with --predict
};

std::string human_count(uint64_t n) {
  const double v = static_cast<double>(n);
  if (v >= 1e9) return fmt::format("{:.2f} B", v / 1e9);
  if (v >= 1e6) return fmt::format("{:.2f} M", v / 1e6);
  if (v >= 1e3) return fmt::format("{:.1f} K", v / 1e3);
  return fmt::format("{}", n);
}

// GROUP=TIER, as in routed_experts=ram.
Status parse_place(const std::string& text, ckpt::PlacementBudget* budget) {
  const size_t equals = text.find('=');
  const std::string key = text.substr(0, equals), tier = equals == std::string::npos ? "" : text.substr(equals + 1);
  for (int g = 0; g < ckpt::kGroups; ++g) {
    if (ckpt::group_key(static_cast<Group>(g)) != key) continue;
    for (const auto& [name, value] : {std::pair{"gpu", Tier::kGpu}, {"ram", Tier::kRam}, {"ssd", Tier::kSsd}}) {
      if (tier == name) {
        budget->fixed[static_cast<Group>(g)] = value;
        return {};
      }
    }
    return make_error(Code::kInvalidArgument, "--place {}: give a tier gpu, ram or ssd", text);
  }
  std::string keys;
  for (int g = 0; g < ckpt::kGroups; ++g)
    keys += fmt::format("{}{}", g > 0 ? ", " : "", ckpt::group_key(static_cast<Group>(g)));
  return make_error(Code::kInvalidArgument, "--place {}: there is no such group; the groups are {}", text, keys);
}

std::string places(const ckpt::PlacementPlan& plan, Group group) {
  uint64_t tiers[ckpt::kTiers];
  plan.sum(group, tiers);
  std::string text;
  int used = 0;
  for (uint64_t bytes : tiers) used += bytes > 0;
  for (int t = 0; t < ckpt::kTiers; ++t) {
    if (tiers[t] == 0) continue;
    text += fmt::format("{}{}{}", text.empty() ? "" : ", ", ckpt::tier_name(static_cast<Tier>(t)),
                        used > 1 ? " " + format_bytes(tiers[t]) : "");
  }
  return text;
}

std::string layer_or_dash(int layer) { return layer < 0 ? "-" : fmt::format("{}", layer); }

std::string layer_notes(const LayerInfo& layer) {
  std::string notes;
  const auto add = [&notes](bool on, std::string_view text) {
    if (on) notes += fmt::format("{}{}", notes.empty() ? "" : ", ", text);
  };
  add(layer.engram >= 0, "Engram before it");
  add(layer.publishes_candidates, "publishes candidate blocks");
  add(layer.uses_candidates, "chooses among candidate blocks");
  add(layer.dspark_tap >= 0, "feeds the drafter");
  return notes;
}

void print_layers(const ckpt::ModelConfig& c) {
  fmt::print("\nLayer schedule\n  {:>5}  {:<7}  {:>5}  {:<7}  {:>7}  {:>10}  {}\n", "layer", "half", "ratio", "role",
             "KV from", "index from", "notes");
  for (const LayerInfo& l : c.layers) {
    std::string line =
        fmt::format("  {:>5}  {:<7}  {:>5}  {:<7}  {:>7}  {:>10}  {}", l.id, l.decoder_half ? "decoder" : "encoder",
                    l.ratio == 0 ? "-" : fmt::format("{}", l.ratio), ckpt::role_name(l.role),
                    layer_or_dash(l.kv_source), layer_or_dash(l.index_source), layer_notes(l));
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
  }
  for (int64_t s = 0; s < c.num_nextn_predict_layers; ++s) {
    fmt::print("  {:>5}  {:<7}  {:>5}  {:<7}  {:>7}  {:>10}\n", fmt::format("mtp.{}", s), "drafter", "-", "window", "-",
               "-");
  }
}

void print_machine(const Inspection& in) {
  const ckpt::Machine& m = in.machine;
  fmt::print("\nThis machine\n  {} core{}, {} RAM ({} free), {} free on the disk of the checkpoint\n", m.cores,
             m.cores == 1 ? "" : "s", format_bytes(m.ram_total), format_bytes(m.ram_free), format_bytes(m.disk_free));
  if (m.gpus.empty()) fmt::print("  no GPU found\n");
  for (size_t i = 0; i < m.gpus.size(); ++i) {
    fmt::print("  GPU {}: {}, {}\n", i, m.gpus[i].name, format_bytes(m.gpus[i].memory));
  }
  fmt::print(
      "  weights may take {} on GPUs and {} of RAM; the plan puts {} on GPUs, {} in RAM and leaves {} on the SSD\n",
      format_bytes(in.budget.gpu_bytes), format_bytes(in.budget.ram_bytes), format_bytes(in.plan.bytes[0]),
      format_bytes(in.plan.bytes[1]), format_bytes(in.plan.bytes[2]));
}

void print_forecast(const Forecast& f) {
  const ckpt::DecodePrediction& d = f.decode;
  fmt::print("\nExpected decode speed with {} of memory for weights, one answer at a time\n", format_bytes(f.budget));
  fmt::print("  {:.3g} tokens/s\n", d.tokens_per_s);
  if (f.plan) {
    fmt::print(
        "  {} always in memory, room for {} of {} experts; {:.0f}% of the experts that a token needs are there if all "
        "are used\n"
        "  alike (most texts prefer some, and are faster)\n",
        format_bytes(f.plan->dense_bytes), f.plan->slots, f.plan->experts, 100 * d.hit_rate);
    fmt::print(
        "  a token reads {} from the SSD in {:.3f} s ({:.2f} GB/s measured) and {:.0f} table rows ({:.0f} a second)\n",
        format_bytes(static_cast<uint64_t>(d.expert_bytes)), d.disk_s, f.rates.disk_bytes_per_s / 1e9, d.row_reads,
        f.rates.disk_rows_per_s);
  } else {
    fmt::print("  all weights fit\n");
  }
  fmt::print("  and {} from memory in {:.3f} s ({:.1f} GB/s measured)\n",
             format_bytes(static_cast<uint64_t>(d.memory_bytes)), d.memory_s, f.rates.memory_bytes_per_s / 1e9);
}

void print_text(const Inspection& in) {
  const ckpt::ModelConfig& c = in.checkpoint->config();
  const ckpt::ModelSizes& s = in.sizes;
  size_t tensors = 0;
  for (const ckpt::SafetensorsFile& f : in.checkpoint->files()) tensors += f.tensors().size();
  fmt::print("{}: DeepSeek-V4.1-Flash architecture (deepseek_v41)\n", in.checkpoint->directory());
  fmt::print(
      "  {} layers ({} encoder, {} decoder), hidden {}, vocabulary {}, context {} tokens, {} routed experts of which "
      "{} per token\n",
      c.num_hidden_layers, c.decoder_start, c.num_hidden_layers - c.decoder_start, c.hidden_size, c.vocab_size,
      c.max_position_embeddings, c.n_routed_experts, c.num_experts_per_tok);
  fmt::print("  drafter of {} stages, {} vision tower, {} Engram layers; {} tensors in {} files\n",
             c.num_nextn_predict_layers, c.vision ? "a" : "no", c.engram.size(), tensors,
             in.checkpoint->files().size());

  fmt::print("\n  {:<26}  {:>12}  {:>10}  {:>6}  {}\n", "group", "parameters", "bytes", "share",
             "place on this machine");
  for (int g = 0; g < ckpt::kGroups; ++g) {
    if (s.bytes[g] == 0) continue;
    const Group group = static_cast<Group>(g);
    fmt::print("  {:<26}  {:>12}  {:>10}  {:>5.1f}%  {}\n", ckpt::group_name(group), human_count(s.parameters[g]),
               format_bytes(s.bytes[g]), 100.0 * static_cast<double>(s.bytes[g]) / static_cast<double>(s.total_bytes),
               places(in.plan, group));
  }
  fmt::print("  {:<26}  {:>12}  {:>10}\n", "all", human_count(s.total_parameters), format_bytes(s.total_bytes));
  fmt::print("  text backbone without Engram: {} parameters; a decoded token meets {}\n",
             human_count(s.backbone_parameters), human_count(s.active_parameters));
  fmt::print(
      "\nKV cache\n  {:.0f} bytes a token (compressed KV and index keys of {} layers), {} for {} tokens; window KV {} "
      "a sequence\n",
      s.kv_bytes_per_token, c.kv_source_layer_ids.size(),
      format_bytes(static_cast<uint64_t>(s.kv_bytes_per_token * static_cast<double>(c.max_position_embeddings))),
      c.max_position_embeddings, format_bytes(s.window_bytes_per_sequence));
  print_layers(c);
  print_machine(in);
  if (in.forecast) print_forecast(*in.forecast);
  if (!in.warnings.empty()) fmt::print("\nWarnings\n");
  for (const std::string& w : in.warnings) fmt::print("  {}\n", without_controls(w));
  fmt::print("\nDigest ({})\n  {}\n", in.file_sums.empty() ? "headers and samples" : "all bytes", in.digest);
  for (const auto& [file, sum] : in.file_sums) fmt::print("  {}  {}\n", sum, file);
}

Json json_layer(const LayerInfo& l) {
  Json layer = Json::object();
  const auto number_or_null = [](int v) { return v < 0 ? Json() : Json(v); };
  layer.set("layer", l.id);
  layer.set("half", l.decoder_half ? "decoder" : "encoder");
  layer.set("ratio", l.ratio);
  layer.set("role", ckpt::role_name(l.role));
  layer.set("kv_source", number_or_null(l.kv_source));
  layer.set("index_source", number_or_null(l.index_source));
  layer.set("engram", l.engram >= 0);
  layer.set("publishes_candidates", l.publishes_candidates);
  layer.set("uses_candidates", l.uses_candidates);
  layer.set("dspark_tap", number_or_null(l.dspark_tap));
  return layer;
}

Json json_groups(const Inspection& in) {
  Json groups = Json::array();
  for (int g = 0; g < ckpt::kGroups; ++g) {
    if (in.sizes.bytes[g] == 0) continue;
    Json group = Json::object(), where = Json::object();
    uint64_t tiers[ckpt::kTiers];
    in.plan.sum(static_cast<Group>(g), tiers);
    for (int t = 0; t < ckpt::kTiers; ++t)
      where.set(t == 0 ? "gpu_bytes" : t == 1 ? "ram_bytes" : "ssd_bytes", tiers[t]);
    group.set("group", ckpt::group_key(static_cast<Group>(g)));
    group.set("parameters", in.sizes.parameters[g]);
    group.set("bytes", in.sizes.bytes[g]);
    group.set("placement", std::move(where));
    groups.as_array().push_back(std::move(group));
  }
  return groups;
}

Json json_machine(const Inspection& in) {
  Json machine = Json::object(), gpus = Json::array();
  for (const ckpt::Gpu& g : in.machine.gpus) {
    Json gpu = Json::object();
    gpu.set("name", g.name);
    gpu.set("memory_bytes", g.memory);
    gpus.as_array().push_back(std::move(gpu));
  }
  machine.set("cores", in.machine.cores);
  machine.set("ram_bytes", in.machine.ram_total);
  machine.set("ram_free_bytes", in.machine.ram_free);
  machine.set("disk_free_bytes", in.machine.disk_free);
  machine.set("gpus", std::move(gpus));
  machine.set("gpu_budget_bytes", in.budget.gpu_bytes);
  machine.set("ram_budget_bytes", in.budget.ram_bytes);
  return machine;
}

Json json_forecast(const Forecast& f) {
  Json out = Json::object();
  out.set("weights_ram_bytes", f.budget);
  out.set("decode_tokens_per_s", f.decode.tokens_per_s);
  out.set("expert_hit_rate", f.decode.hit_rate);
  out.set("ssd_bytes_per_token", f.decode.expert_bytes);
  out.set("memory_bytes_per_token", f.decode.memory_bytes);
  out.set("table_reads_per_token", f.decode.row_reads);
  out.set("measured_memory_bytes_per_s", f.rates.memory_bytes_per_s);
  out.set("measured_ssd_bytes_per_s", f.rates.disk_bytes_per_s);
  out.set("measured_ssd_rows_per_s", f.rates.disk_rows_per_s);
  if (f.plan) {
    out.set("resident_bytes", f.plan->dense_bytes);
    out.set("expert_slots", f.plan->slots);
    out.set("experts", f.plan->experts);
  }
  return out;
}

void print_json(const Inspection& in) {
  const ckpt::ModelConfig& c = in.checkpoint->config();
  Json root = Json::object(), layers = Json::array(), warnings = Json::array(), files = Json::array();
  for (const LayerInfo& l : c.layers) layers.as_array().push_back(json_layer(l));
  for (const std::string& w : in.warnings) warnings.as_array().push_back(w);
  for (size_t i = 0; i < in.checkpoint->files().size(); ++i) {
    const ckpt::SafetensorsFile& f = in.checkpoint->files()[i];
    Json file = Json::object();
    file.set("name", f.path().substr(f.path().find_last_of('/') + 1));
    file.set("bytes", static_cast<uint64_t>(f.bytes().size()));
    file.set("tensors", static_cast<uint64_t>(f.tensors().size()));
    if (!in.file_sums.empty()) file.set("sha256", in.file_sums[i].second);
    files.as_array().push_back(std::move(file));
  }
  root.set("directory", in.checkpoint->directory());
  root.set("model_type", "deepseek_v41");
  root.set("layers", std::move(layers));
  root.set("drafter_stages", c.num_nextn_predict_layers);
  root.set("vision", c.vision.has_value());
  root.set("hidden_size", c.hidden_size);
  root.set("vocab_size", c.vocab_size);
  root.set("max_position_embeddings", c.max_position_embeddings);
  root.set("parameters", in.sizes.total_parameters);
  root.set("backbone_parameters", in.sizes.backbone_parameters);
  root.set("active_parameters", in.sizes.active_parameters);
  root.set("bytes", in.sizes.total_bytes);
  root.set("groups", json_groups(in));
  root.set("kv_bytes_per_token", in.sizes.kv_bytes_per_token);
  root.set("window_bytes_per_sequence", in.sizes.window_bytes_per_sequence);
  root.set("machine", json_machine(in));
  root.set("files", std::move(files));
  if (in.forecast) root.set("forecast", json_forecast(*in.forecast));
  root.set("warnings", std::move(warnings));
  root.set("digest", in.digest);
  root.set("digest_covers", in.file_sums.empty() ? "headers and samples" : "all bytes");
  fmt::print("{}\n", recipe::to_python_json(root));
}

// Weights get what run and serve would leave them, but for KV and work, which depend on the options there.
Result<Forecast> forecast(const ckpt::Checkpoint& checkpoint, const Inspection& in) {
  constexpr double kSeconds = 2;
  Forecast f;
  f.budget = in.budget.ram_bytes;
  DI_ASSIGN_OR_RETURN(f.rates, ckpt::measure_disk(checkpoint, kSeconds));
  DI_ASSIGN_OR_RETURN(f.rates.memory_bytes_per_s, ckpt::measure_memory(in.machine.cores));
  ckpt::StorePlan plan;
  if (engine::text_weight_bytes(checkpoint.config()) > f.budget) {
    DI_ASSIGN_OR_RETURN(plan, ckpt::plan_store(checkpoint.config(), {.ram_bytes = f.budget}));
    f.plan = plan;
  } else {
    plan.slots = plan.experts = 1;
    plan.table_resident.assign(checkpoint.config().engram.size(), true);
  }
  f.decode = ckpt::predict_decode(checkpoint.config(), plan, f.rates);
  return f;
}

int inspect(const InspectFlags& flags) {
  const Result<ckpt::Checkpoint> checkpoint = ckpt::Checkpoint::open(flags.directory);
  if (!checkpoint.ok()) return fail(checkpoint.status().message());
  Inspection in{&checkpoint.value(), ckpt::model_sizes(checkpoint.value().config()),
                ckpt::probe_machine(flags.directory)};
  in.budget = ckpt::budget_of(in.machine);
  if (std::isnan(flags.gpu_gb) || std::isnan(flags.ram_gb)) return fail("--gpu-gb and --ram-gb must be numbers.");
  if (flags.gpu_gb >= 0) in.budget.gpu_bytes = static_cast<uint64_t>(flags.gpu_gb * 1e9);
  if (flags.ram_gb >= 0) in.budget.ram_bytes = static_cast<uint64_t>(flags.ram_gb * 1e9);
  if (!flags.ram.empty()) {
    const Result<uint64_t> ram = parse_bytes(flags.ram);
    if (!ram.ok()) return fail(ram.status().message());
    in.budget.ram_bytes = ram.value();
  }
  for (const std::string& place : flags.place) {
    const Status s = parse_place(place, &in.budget);
    if (!s.ok()) return fail(s.message());
  }
  in.plan = ckpt::plan_placement(checkpoint.value().config(), in.budget);
  in.warnings = checkpoint.value().warnings();
  if (flags.predict) {
    Result<Forecast> f = forecast(checkpoint.value(), in);
    if (!f.ok()) return fail(f.status().message());
    in.forecast = std::move(f).value();
  }
  if (flags.digest == "full") {
    if (const Status s = checkpoint.value().check_weights(UINT64_MAX); !s.ok()) in.warnings.push_back(s.message());
    ckpt::Checkpoint::FullDigest full = checkpoint.value().full_digest(in.machine.cores);
    in.digest = full.digest;
    in.file_sums = std::move(full.files);
    if (!checkpoint.value().scales_checked()) {
      std::string first;
      const uint64_t nan = checkpoint.value().count_nan_scales(&first);
      if (nan > 0)
        in.warnings.push_back(
            fmt::format("{} scales are NaN (byte 255), first in \"{}\": the weights are damaged", nan, first));
    }
  } else {
    in.digest = checkpoint.value().digest();
  }
  if (flags.json) print_json(in);
  else print_text(in);
  return kExitOk;
}

void setup_inspect(CLI::App& app, Run* run) {
  auto flags = std::make_shared<InspectFlags>();
  app.add_option("directory", flags->directory, "Folder of a checkpoint (config.json, safetensors files)")->required();
  app.add_flag("--json", flags->json, "Print one JSON object");
  app.add_option("--digest", flags->digest, "fast: headers and samples; full: every byte, with the sha256 of each file")
      ->check(CLI::IsMember({"fast", "full"}))
      ->capture_default_str()
      ->take_last();
  app.add_option("--gpu-gb", flags->gpu_gb, "GPU memory that weights may take, instead of what is found here")
      ->check(CLI::Range(0.0, 1e6))
      ->take_last();
  CLI::Option* ram_gb =
      app.add_option("--ram-gb", flags->ram_gb, "RAM that weights may take, instead of what is found here")
          ->check(CLI::Range(0.0, 1e6))
          ->take_last();
  app.add_option("--ram", flags->ram, "The same with a unit, as in 24GiB")->excludes(ram_gb)->take_last();
  app.add_flag("--predict", flags->predict,
               "Measure memory and disk for a few seconds and say how fast the model will decode");
  app.add_option("--place", flags->place,
                 "GROUP=gpu|ram|ssd: put a group there whatever the sizes say; may be repeated");
  *run = [flags] { return inspect(*flags); };
}

const Command kInspect("inspect", "Show what a checkpoint holds and where it would live on this machine",
                       &setup_inspect);

}  // namespace
}  // namespace deepinfer::app
