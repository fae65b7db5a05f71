#include "app/options/former_names.h"

namespace deepinfer::app {
namespace {

constexpr std::string_view kOneRank = "it concerns several accelerators; one process uses one device here";
constexpr std::string_view kNoGraphs = "graph capture needs no setting here";
constexpr std::string_view kNoJit = "kernels are compiled when the program is built";
constexpr std::string_view kImages = "images are not read in offline jobs";
constexpr std::string_view kMixed = "prompts and answers share steps here, so that nothing waits for its turn";
constexpr std::string_view kSameTokens = "drafts never change an answer here, and the engine decides on them";
constexpr std::string_view kPython = "the engine is not written in Python";
constexpr std::string_view kTestOnly = "it draws random experts, which changes every answer";

}  // namespace

std::span<const FormerName> former_names() {
  static constexpr FormerName kNames[] = {
      {"BATCH_INVARIANT", "*", "answers never depend on the batch here"},
      {"COMPUTE_SUM_SMALLER_PROBS", "0 false False", "the mass of less likely tokens is not reported"},
      {"CUDAGRAPH_BATCH_SIZE_INTERVAL", "*", kNoGraphs},
      {"DECODE_PERF_CACHE_DIR", "*", "no time curve is stored"},
      {"DECODE_PERF_CACHE_TTL_SEC", "*", "no time curve is stored"},
      {"DFLASH_CONFIDENCE_HEAD_TEMPERATURE", "*", kSameTokens},
      {"DFLASH_CUDAGRAPH_BATCH_SIZE_INTERVAL", "*", kNoGraphs},
      {"DFLASH_ENFORCE_EAGER", "*", kNoGraphs},
      {"DISABLE_SYNC_GUARD", "*", "there is no such guard"},
      {"ENABLE_MEMORY_TRACING", "*", "memory is planned before it is allocated: deepinfer inspect"},
      {"ENFORCE_EAGER", "*", kNoGraphs},
      {"ENGRAM_FORCE_GPU_STORAGE", "*", "the placement plan decides: deepinfer inspect"},
      {"ENGRAM_PAD_TOKEN", "2", "the token comes from the checkpoint"},
      {"EXPERT_COUNT_WINDOW_SIZE", "*", kOneRank},
      {"EXPERT_REARRANGEMENT_STEP_INTERVAL", "*", kOneRank},
      {"FORCE_IMBALANCE_RATIO", "0 0.0", kTestOnly},
      {"FORCE_LOAD_BALANCE", "0 false False", kTestOnly},
      {"GC_INTERVAL_STEP", "*", kPython},
      {"GLOO_TIMEOUT", "*", kOneRank},
      {"INDEX_ATTN_MEMORY_LIMIT", "*", "the memory of a step is bounded by rows"},
      {"JIT_CACHE_DIR", "*", kNoJit},
      {"MAX_BACKTRACKING_TOKENS", "1 2 3 4 5 6 7 8 9 10 11 12", "12 tokens can be rolled back here"},
      {"MOE_LB_STAT_INTERVAL", "*", kOneRank},
      {"MULTIMODAL_POOL_SIZE_GB", "*", kImages},
      {"MULTI_MODAL_BUFFER_SIZE", "*", kImages},
      {"MULTI_MODAL_WORKER_TIMEOUT", "*", kImages},
      {"NCCL_MEMORY_SAMPLE_INTERVAL_STEPS", "*", kOneRank},
      {"NCCL_NUM_SMS", "*", kOneRank},
      {"NUM_STATE_SLOTS_RATIO", "*", "there is one state slot a running answer"},
      {"OVERRIDE_NUM_EXTRA_EXPERTS", "*", kOneRank},
      {"PREFILL_ANY_ATTEMPT_INTERVAL", "*", kMixed},
      {"PREFILL_ATTEMPT_INTERVAL", "*", kMixed},
      {"PREFILL_MAX_SUM_SEQLEN_K", "*", "the memory of a step is bounded by rows"},
      {"PREFILL_STORE_EXTRA_SIZE", "*", "window snapshots need no setting"},
      {"PREFILL_STORE_EXTRA_STATE", "*", "window snapshots need no setting"},
      {"PROFILE_HTTP_ENABLE", "0 false False", "there is no profiler endpoint"},
      {"PROFILE_HTTP_PORT_BASE", "*", "there is no profiler endpoint"},
      {"PROFILE_TORCH_CUDA_MEMORY", "*", kPython},
      {"REARRANGE_AFTER_PREFILL_IN_NORMAL_ENGINE", "*", kOneRank},
      {"REARRANGE_P2P_GROUPS", "*", kOneRank},
      {"RINGBUFFER_WARNING_INTERVAL", "*", kOneRank},
      {"SHOW_EPLB_DETAIL", "*", kOneRank},
      {"TORCH_PROFILER_DIR", "*", kPython},
      {"USERBUFFER_COMM_SMS", "*", kOneRank},
      {"USE_MULTIMODAL_POOL", "*", kImages},
      {"XGRAMMAR_DEBUG", "*", "deepinfer grammar shows what a grammar does"},
      {"XGRAMMAR_DISABLE_CACHE", "0 false False", "DEEPINFER_GRAMMAR_CACHE_BYTES=0 does that here"},
      {"ZERO_OVERHEAD_SCHEDULING", "*", "it never changes an answer"},
  };
  return kNames;
}

}  // namespace deepinfer::app
