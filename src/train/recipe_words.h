// The words by which recipes and command lines name choices.
#pragma once

#include <span>
#include <string_view>

#include "train/recipe.h"

namespace yoke {

template <class E>
struct Word {
  E value;
  std::string_view text;
};

inline constexpr Word<Initialisation> kInitialisationWords[] = {{Initialisation::pretrained, "pretrained"},
                                                                {Initialisation::random, "random"}};
inline constexpr Word<DataFormat> kDataFormatWords[] = {
    {DataFormat::text, "text"},     {DataFormat::jsonl, "jsonl"},       {DataFormat::chat, "chat"},
    {DataFormat::alpaca, "alpaca"}, {DataFormat::sharegpt, "sharegpt"}, {DataFormat::tokens, "tokens"}};
inline constexpr Word<Precision> kPrecisionWords[] = {
    {Precision::bf16, "bf16"}, {Precision::fp16, "fp16"}, {Precision::fp32, "fp32"}};
inline constexpr Word<OptimizerKind> kOptimizerWords[] = {{OptimizerKind::adamw, "adamw"},
                                                          {OptimizerKind::muon, "muon"},
                                                          {OptimizerKind::adafactor, "adafactor"},
                                                          {OptimizerKind::sgd, "sgd"}};
inline constexpr Word<ScheduleKind> kScheduleWords[] = {{ScheduleKind::constant, "constant"},
                                                        {ScheduleKind::linear, "linear"},
                                                        {ScheduleKind::cosine, "cosine"},
                                                        {ScheduleKind::wsd, "wsd"}};
inline constexpr Word<AdapterKind> kAdapterWords[] = {
    {AdapterKind::none, "none"}, {AdapterKind::lora, "lora"}, {AdapterKind::qlora, "qlora"}};
inline constexpr Word<Quantization> kQuantizationWords[] = {{Quantization::nf4, "nf4"}, {Quantization::int8, "int8"}};
inline constexpr Word<Recompute> kRecomputeWords[] = {{Recompute::none, "none"},
                                                      {Recompute::norms, "norms"},
                                                      {Recompute::mlp, "mlp"},
                                                      {Recompute::attention, "attention"},
                                                      {Recompute::block, "block"}};
inline constexpr Word<MomentsFormat> kMomentsWords[] = {
    {MomentsFormat::fp32, "fp32"}, {MomentsFormat::bf16, "bf16"}, {MomentsFormat::int8, "int8"}};
inline constexpr Word<MasterFormat> kMasterWords[] = {{MasterFormat::fp32, "fp32"}, {MasterFormat::none, "none"}};
inline constexpr Word<GradientsFormat> kGradientsWords[] = {{GradientsFormat::fp32, "fp32"},
                                                            {GradientsFormat::bf16, "bf16"}};
inline constexpr Word<Offload> kOffloadWords[] = {
    {Offload::optimizer, "optimizer"}, {Offload::activations, "activations"}, {Offload::weights, "weights"}};
inline constexpr Word<PipelineSchedule> kPipelineScheduleWords[] = {{PipelineSchedule::one_f_one_b, "1f1b"},
                                                                    {PipelineSchedule::interleaved, "interleaved"},
                                                                    {PipelineSchedule::zero_bubble, "zero-bubble"}};
inline constexpr Word<DeviceChoice> kDeviceWords[] = {
    {DeviceChoice::automatic, "auto"}, {DeviceChoice::cpu, "cpu"}, {DeviceChoice::cuda, "cuda"}};

/// The word of `value`, which is in `words`.
template <class E>
constexpr std::string_view word_of(E value, std::span<const Word<E>> words) {
  for (const Word<E>& word : words) {
    if (word.value == value) return word.text;
  }
  return "";
}

}  // namespace yoke
