#include <cstring>

#include "ops/embedding/embedding.h"
#include "ops/op_case.h"

namespace yoke {
namespace {

struct Sizes {
  int64_t tokens, vocabulary, hidden;
  int64_t padding = 0;
  DType gradient = DType::f32;
  int64_t first = 0, ids = 0;  // tokens are in [0, ids), the table has those from `first` on; ids 0: exactly those
};

/// Token t of the rows: repeats, and leaves some rows of the table unnamed.
double token(int64_t t, int64_t vocabulary) { return static_cast<double>((t * t * 7 + 3) % vocabulary); }

OpCase row(DType dtype, Sizes s, bool bench = false) {
  OpCase c;
  c.name = fmt::format("embedding/{}/{}x{}x{}{}", name_of(dtype), s.tokens, s.vocabulary, s.hidden,
                       s.padding ? "/strided" : "");
  if (s.first != 0) c.name += fmt::format("/from{}", s.first);
  if (s.gradient != DType::f32) c.name += fmt::format("/{}_gradient", name_of(s.gradient));
  c.bench = bench;
  c.inputs = {{.name = "tokens",
               .dtype = DType::i32,
               .shape = {s.tokens},
               .value = [=](int64_t t) { return token(t, s.ids ? s.ids : s.vocabulary); }},
              {.name = "table", .dtype = dtype, .shape = {s.vocabulary, s.hidden}, .row_padding = s.padding}};
  c.outputs = {{.name = "y", .dtype = dtype, .shape = {s.tokens, s.hidden}, .row_padding = s.padding}};
  c.reference = [=](const Arrays& in, Arrays& out) {
    for (int64_t t = 0; t < s.tokens; ++t) {
      const auto id = static_cast<int64_t>(in.at("tokens")[t]) - s.first;
      const bool here = id >= 0 && id < s.vocabulary;
      for (int64_t i = 0; i < s.hidden; ++i) out["y"][t * s.hidden + i] = here ? in.at("table")[id * s.hidden + i] : 0;
    }
  };
  c.forward = [=](Context& ctx, Views& v) {
    embedding_forward(ctx, {.tokens = v["tokens"], .table = v["table"], .y = v["y"], .first = s.first});
  };
  c.seeds = {"y"};
  c.gradients = {{.of = "table", .dtype = s.gradient, .accumulates = true}};
  c.backward = [=](Context& ctx, Views& v, bool accumulate) {
    embedding_backward(
        ctx, {.tokens = v["tokens"], .dy = v["dy"], .dtable = v["dtable"], .accumulate = accumulate, .first = s.first});
  };
  return c;
}

/// The gradient's sums run in order of t whatever the number of threads: bits equal a plain loop's.
OpCase order(int threads) {
  constexpr int64_t kTokens = 300, kVocabulary = 7, kHidden = 101;
  OpCase c;
  c.name = fmt::format("embedding/order/{}threads", threads);
  c.inputs = {{.name = "tokens",
               .dtype = DType::i32,
               .shape = {kTokens},
               .value = [](int64_t t) { return token(t, kVocabulary); }},
              {.name = "dy", .shape = {kTokens, kHidden}, .low = -1e3, .high = 1e3}};
  c.outputs = {{.name = "dtable", .shape = {kVocabulary, kHidden}, .accuracy = DType::i32}};
  c.reference = [](const Arrays& in, Arrays& out) {
    for (int64_t t = 0; t < kTokens; ++t) {
      const auto id = static_cast<int64_t>(in.at("tokens")[t]);
      for (int64_t i = 0; i < kHidden; ++i) {
        double& sum = out["dtable"][id * kHidden + i];
        sum = static_cast<float>(static_cast<float>(sum) + static_cast<float>(in.at("dy")[t * kHidden + i]));
      }
    }
  };
  c.forward = [=](Context& ctx, Views& v) {
    const Device device = with_threads(ctx.device, threads);
    Context other{device, ctx.stream, ctx.arena};
    embedding_backward(other, {.tokens = v["tokens"], .dy = v["dy"], .dtable = v["dtable"]});
  };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    all.push_back(row(dtype, {.tokens = 1, .vocabulary = 3, .hidden = 1}));
    all.push_back(row(dtype, {.tokens = 9, .vocabulary = 11, .hidden = 33}));
    all.push_back(row(dtype, {.tokens = 64, .vocabulary = 13, .hidden = 17, .padding = 6}));
  }
  for (const DType dtype : {DType::bf16, DType::f32}) {
    all.push_back(row(dtype, {.tokens = 300, .vocabulary = 7, .hidden = 101, .gradient = DType::bf16}));
    all.push_back(
        row(dtype, {.tokens = 90, .vocabulary = 5, .hidden = 21, .gradient = DType::bf16, .first = 3, .ids = 13}));
    all.push_back(row(dtype, {.tokens = 90, .vocabulary = 5, .hidden = 21, .first = 3, .ids = 13}));
    all.push_back(row(dtype, {.tokens = 9, .vocabulary = 5, .hidden = 21, .first = 13, .ids = 13}));
  }
  for (const int threads : {1, 2, 5}) all.push_back(order(threads));
  all.push_back(row(DType::bf16, {.tokens = 1024, .vocabulary = 32000, .hidden = 768}, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
