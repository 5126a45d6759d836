#include "plan/memory_plan.h"

#include <algorithm>

#include "base/error.h"
#include "checkpoint/hf_config.h"
#include "train/pipeline_cost.h"
#include "train/run_setup.h"

namespace yoke {

namespace {

/// CUDA context, kernels and library handles of a process: what github.com/pytorch/pytorch/pull/86509 measured for a
/// program with far more kernels that loads all of them is 666,632,192 bytes, 287,047,680 when they load on use.
constexpr size_t kGpuOverhead = size_t{640} << 20;

/// The type that products run in: what was asked for, else bf16, or fp16 where the GPU has none.
DType compute_type_of(const Gpu& gpu, const std::optional<Precision>& precision) {
  if (precision == Precision::fp32) return DType::f32;
  if (precision == Precision::fp16 || (!precision && gpu.bf16_flops == 0)) return DType::f16;
  if (gpu.bf16_flops == 0)
    fail_usage("train.precision is bf16, which {} can't compute in; use fp16 or fp32.", gpu.name);
  return DType::bf16;
}

DeviceRates rates_of(const Gpu& gpu, DType compute) {
  const double flops = compute == DType::bf16  ? gpu.bf16_flops
                       : compute == DType::f16 ? gpu.fp16_flops
                                               : gpu.fp32_flops;
  return {.flops_per_second = flops, .bytes_per_second = gpu.bytes_per_second};
}

/// A ring's steps in NCCL's own model (tuning.cc, protocol "Simple"): over NVLink or PCIe, and over a network.
constexpr double kNodeLatency = 3.4e-6, kNetworkLatency = 14e-6;
/// A port of 400 Gb/s for each GPU, as nodes of H100 have it.
constexpr double kNetworkBytesPerSecond = 50e9;
constexpr int kGpusOfANode = 8;

LinkRates links_of(const Gpu& gpu, int ranks, int node_ranks) {
  return {.node = {gpu.link_bytes_per_second, kNodeLatency},
          .network = {kNetworkBytesPerSecond, kNetworkLatency},
          .node_ranks = node_ranks > 0 ? node_ranks : std::min(ranks, kGpusOfANode)};
}

/// Chooses what the recipe leaves open.
void settle(MemoryPlan& p, const Recipe& recipe) {
  Fit fit = fit_recipe(p.search(), recipe, p.engine);
  p.engine = fit.options;
  p.plan = std::move(fit.plan);
}

void plan_on_gpu(MemoryPlan& p, const Recipe& recipe, int node_ranks) {
  const Gpu& gpu = *p.gpu;
  const int ranks = p.engine.mesh.ranks();
  if (ranks > 1) p.links = links_of(gpu, ranks, node_ranks);
  p.device = gpu.name;
  p.planned_on = Device::dry_gpu(gpu.multiprocessors);
  p.rates = rates_of(gpu, p.engine.compute);
  p.outside = {{"context, kernels, libraries", "overhead", 1, kGpuOverhead}};
  const auto limit = static_cast<size_t>(recipe.memory.limit.value_or(INT64_MAX));
  p.limited = limit < gpu.usable_bytes;
  p.capacity = std::min(limit, gpu.usable_bytes);
  p.capacity_source = p.limited ? "memory.limit"
                      : gpu.usable_source.empty()
                          ? fmt::format("the vendor's {} GB, taken as 10^9 bytes each", gpu.vendor_gb)
                          : gpu.usable_source;
  settle(p, recipe);
  p.estimates = {
      "There are no GPU kernels yet: the workspace of matrix products is what cuBLAS recommends, the tiles of "
      "attention are taken to stay in shared memory.",
      "The overhead of context, kernels and libraries is an estimate from measurements of other programs.",
      "Times are bounds from the vendor's peak rates."};
  if (ranks > 1) {
    p.estimates.push_back(fmt::format(
        "Messages: {} of {:.0f} GB/s each way and {:.1f} us between the {} ranks of a node{}, behind the computation "
        "where it lets them; collectives as rings.",
        gpu.link, gpu.link_bytes_per_second * 1e-9, kNodeLatency * 1e6, p.links.node_ranks,
        ranks <= p.links.node_ranks ? ""
                                    : fmt::format(", and between nodes, which is assumed, {:.0f} GB/s and {:.0f} us",
                                                  kNetworkBytesPerSecond * 1e-9, kNetworkLatency * 1e6)));
  }
  if (gpu.vendor != "NVIDIA") p.estimates.push_back(fmt::format("yoke has no backend for GPUs of {}.", gpu.vendor));
}

void plan_on_this_machine(MemoryPlan& p, const Recipe& recipe, int node_ranks) {
  p.local_ranks = node_ranks > 0 ? std::min(node_ranks, p.engine.mesh.ranks()) : p.engine.mesh.ranks();
  p.planned_on = Device::cpu(static_cast<int>(recipe.threads.value_or(std::max(usable_cores() / p.local_ranks, 1))));
  p.device = p.planned_on.str();
  p.rates = measure_rates(p.planned_on, p.engine.compute);
  const MemoryBudget budget = measure_budget(recipe, p.engine, p.planned_on.threads(), p.local_ranks);
  p.outside = {{"batches, read ahead", "loader", 3, budget.loader},
               {"program and libraries", "overhead", 1, budget.before + budget.runtime}};
  p.capacity = std::min(budget.capacity, budget.outside() + static_cast<size_t>(budget.arena()));
  p.limited = budget.limited;
  p.capacity_source = p.limited ? "memory.limit"
                                : "physical memory and cgroup limits, less what other processes hold now and a reserve";
  settle(p, recipe);
  p.estimates = {"Program and libraries: what this process has resident now; tokenizer and data come on top.",
                 "Times are bounds from rates measured just now."};
  if (p.engine.mesh.ranks() > 1) {
    p.estimates.push_back(
        fmt::format("{} ranks share this machine's free memory evenly; rates are those of one rank alone, and messages "
                    "take no time: "
                    "how fast they are here is not known.",
                    p.local_ranks));
  }
}

}  // namespace

std::vector<PlanLine> MemoryPlan::lines() const {
  std::vector<PlanLine> lines;
  for (const PlanItem& item : plan.items()) {
    lines.push_back({item.name, std::string(name_of(item.kind)), item.count, item.bytes});
  }
  lines.insert(lines.end(), outside.begin(), outside.end());
  return lines;
}

size_t MemoryPlan::needed() const {
  size_t bytes = plan.peak_bytes;
  for (const PlanLine& line : outside) bytes += line.bytes;
  return bytes;
}

FitSearch MemoryPlan::search() const {
  double budget = static_cast<double>(capacity);
  for (const PlanLine& line : outside) budget -= static_cast<double>(line.bytes);
  return {planned_on, config, rates, budget, links};
}

MemoryPlan plan_memory(const Recipe& recipe, const std::optional<Gpu>& gpu, const PlannedRanks& ranks) {
  if (recipe.device == DeviceChoice::cuda && !gpu) fail_usage("device is cuda; name the GPU with --gpu.");
  if (recipe.device == DeviceChoice::cpu && gpu) fail_usage("device is cpu; leave --gpu out, or set --device auto.");
  Recipe here = recipe;
  here.device = DeviceChoice::automatic;  // a plan needs no device
  check_supported(here);
  MemoryPlan p{.model = recipe.model.path, .config = read_hf_config(recipe.model.path).model, .gpu = gpu};
  const auto& precision = recipe.train.precision;
  p.engine =
      engine_options(recipe, p.config, gpu ? compute_type_of(*gpu, precision) : compute_type(precision), ranks.mesh);
  if (gpu) {
    plan_on_gpu(p, recipe, ranks.node_ranks);
  } else {
    plan_on_this_machine(p, recipe, ranks.node_ranks);
  }
  if (p.engine.mesh.pipeline > 1) p.pipeline = pipeline_timeline_of(p.planned_on, p.config, p.engine, p.rates, p.links);
  return p;
}

}  // namespace yoke
