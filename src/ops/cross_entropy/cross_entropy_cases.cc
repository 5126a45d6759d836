#include <algorithm>
#include <cmath>

#include "ops/cross_entropy/cross_entropy.h"
#include "ops/elementwise/elementwise.h"
#include "ops/op_case.h"

namespace yoke {
namespace {

enum class Supervised { all, most, none };

struct Sizes {
  int64_t tokens, vocabulary;
  double range = 5;
  int64_t padding = 0;
  Supervised supervised = Supervised::most;
  float scale = 0.125f;
  int64_t ranks = 0;  // > 0: cut into pieces of equal width, the last ones padded
};

/// The loss of all of `args.logits`, or, piece by piece, as so many ranks would find it together.
void losses(Context& ctx, const CrossEntropy& args, int64_t ranks) {
  if (ranks == 0) return cross_entropy(ctx, args);
  ArenaScope scope(ctx.arena);
  const int64_t tokens = args.logits.rows(), vocabulary = args.logits.cols(), width = (vocabulary + ranks - 1) / ranks;
  const bool gradient = !args.dlogits.absent();
  const TensorView sums = ctx.arena.allocate("sums", DType::f64, {ranks, tokens, CrossEntropySums::kSums});
  std::vector<TensorView> pieces;
  const auto real = [&](int64_t r) { return std::clamp<int64_t>(vocabulary - r * width, 0, width); };
  for (int64_t r = 0; r < ranks; ++r) {
    const TensorView piece = pieces.emplace_back(ctx.arena.allocate("piece", args.logits.dtype, {tokens, width}));
    fill(ctx, {.y = piece, .value = 1000});  // padding must not count
    if (real(r) > 0) convert(ctx, {.x = columns(args.logits, r * width, real(r)), .y = columns(piece, 0, real(r))});
    cross_entropy_sums(ctx, {.logits = piece,
                             .targets = args.targets,
                             .sums = rows(reshape(sums, {ranks * tokens, sums.cols()}), r * tokens, tokens),
                             .first = r * width,
                             .vocabulary = vocabulary});
  }
  const TensorView padding = ctx.arena.allocate("padding", DType::f32, {tokens, width});
  for (int64_t r = 0; r < ranks; ++r) {
    const TensorView& piece = pieces[static_cast<size_t>(r)];
    cross_entropy_shard(ctx, {.logits = piece,
                              .targets = args.targets,
                              .sums = sums,
                              .loss = args.loss,
                              .dlogits = gradient ? piece : TensorView{},
                              .scale = args.scale,
                              .first = r * width,
                              .vocabulary = vocabulary});
    if (!gradient) continue;
    if (real(r) > 0) convert(ctx, {.x = columns(piece, 0, real(r)), .y = columns(args.dlogits, r * width, real(r))});
    convert(ctx, {.x = piece, .y = padding});
    for (int64_t i = 0; padding.data != nullptr && i < padding.elements(); ++i) {
      if (i % width >= real(r)) YOKE_ASSERT(padding.as<float>()[i] == 0, "a gradient in column {}", i % width);
    }
  }
}

double target_of(int64_t t, const Sizes& s) {
  if (s.supervised == Supervised::none || (s.supervised == Supervised::most && t % 3 == 1)) {
    return t % 2 ? -100 : -1;
  }
  return static_cast<double>((t * 31 + s.vocabulary - 1) % s.vocabulary);
}

/// Fills "loss" and, where it is asked for, "dlogits".
void reference(const Sizes& s, const Arrays& in, Arrays& out) {
  const bool gradient = out.contains("dlogits");
  for (int64_t t = 0; t < s.tokens; ++t) {
    const double* x = in.at("logits").data() + t * s.vocabulary;
    const auto target = static_cast<int64_t>(in.at("targets")[t]);
    if (target < 0) continue;  // zeros
    const double largest = *std::max_element(x, x + s.vocabulary);
    double sum = 0;
    for (int64_t j = 0; j < s.vocabulary; ++j) sum += std::exp(x[j] - largest);
    out["loss"][t] = std::log(sum) + (largest - x[target]);
    if (!gradient) continue;
    for (int64_t j = 0; j < s.vocabulary; ++j) {
      const double others = j == target ? sum - std::exp(x[j] - largest) : 0;  // 1 - p without cancellation
      out["dlogits"][t * s.vocabulary + j] = (j == target ? -others : std::exp(x[j] - largest)) / sum * s.scale;
    }
  }
}

OpCase base(DType dtype, const Sizes& s, const char* kind) {
  OpCase c;
  c.name = fmt::format("cross_entropy/{}/{}x{}/to{}{}{}/{}", name_of(dtype), s.tokens, s.vocabulary, s.range,
                       s.padding ? "/strided" : "",
                       s.supervised == Supervised::none  ? "/unsupervised"
                       : s.supervised == Supervised::all ? "/all"
                                                         : "",
                       kind);
  if (s.ranks > 0) c.name += fmt::format("/{}ranks", s.ranks);
  c.inputs = {{.name = "logits",
               .dtype = dtype,
               .shape = {s.tokens, s.vocabulary},
               .low = -s.range,
               .high = s.range,
               .row_padding = s.padding},
              {.name = "targets", .dtype = DType::i32, .shape = {s.tokens}, .value = [=](int64_t t) {
                 return target_of(t, s);
               }}};
  c.outputs = {{.name = "loss", .shape = {s.tokens}}};
  c.reference = [=](const Arrays& in, Arrays& out) { reference(s, in, out); };
  return c;
}

OpCase loss_only(DType dtype, const Sizes& s) {
  OpCase c = base(dtype, s, "loss");
  c.forward = [=](Context& ctx, Views& v) {
    losses(ctx, {.logits = v["logits"], .targets = v["targets"], .loss = v["loss"], .scale = s.scale}, s.ranks);
  };
  return c;
}

/// dlogits is an output of its own, then in place of the logits.
OpCase with_gradient(DType dtype, const Sizes& s, bool bench = false) {
  OpCase c = base(dtype, s, "gradient");
  c.bench = bench;
  c.outputs.push_back({.name = "dlogits", .dtype = dtype, .shape = {s.tokens, s.vocabulary}, .row_padding = s.padding});
  c.in_place = {{"dlogits", "logits"}};
  c.forward = [=](Context& ctx, Views& v) {
    losses(
        ctx,
        {.logits = v["logits"], .targets = v["targets"], .loss = v["loss"], .dlogits = v["dlogits"], .scale = s.scale},
        s.ranks);
  };
  return c;
}

/// The gradient is that of the loss: against finite differences of the losses' sum.
OpCase differences(DType dtype, const Sizes& s) {
  OpCase c = loss_only(dtype, s);
  c.name += "/differences";
  c.seeds = {"loss"};
  // Every token's seed is different, so each is one call with its seed as the scale.
  c.gradients = {{.of = "logits", .dtype = dtype}};
  c.backward = [=](Context& ctx, Views& v, bool) {
    for (int64_t t = 0; t < s.tokens; ++t) {
      TensorView target(v["targets"].data, DType::i32, {1}), loss(v["loss"].data, DType::f32, {1});
      float seed = 1;
      if (target.data != nullptr) {
        target.data = target.as<int32_t>() + t;
        loss.data = loss.as<float>() + t;
        seed = v["dloss"].as<float>()[t];
      }
      losses(ctx,
             {.logits = rows(v["logits"], t, 1),
              .targets = target,
              .loss = loss,
              .dlogits = rows(v["dlogits"], t, 1),
              .scale = seed},
             s.ranks);
    }
  };
  return c;
}

/// One logit of each row is infinite or NaN, at the target or beside it, early or late: all those losses are NaN, and
/// the row between them that is sound stays sound.
OpCase not_finite(DType dtype, int64_t ranks) {
  constexpr int64_t kTokens = 13, kVocabulary = 1201;
  OpCase c;
  c.name = fmt::format("cross_entropy/{}/not_finite/{}ranks", name_of(dtype), ranks);
  c.inputs = {{.name = "targets", .dtype = DType::i32, .shape = {kTokens}, .value = [](int64_t t) {
                 return t % 2 ? 700.0 : 3.0;
               }}};
  c.outputs = {{.name = "loss_is_nan", .dtype = DType::i32, .shape = {kTokens}},
               {.name = "gradient_is_finite", .dtype = DType::i32, .shape = {kTokens}}};
  c.reference = [](const Arrays&, Arrays& out) {
    for (int64_t t = 0; t < kTokens; ++t) {
      out["loss_is_nan"][t] = t != 6;
      out["gradient_is_finite"][t] = t == 6;
    }
  };
  c.forward = [=](Context& ctx, Views& v) {
    ArenaScope scope(ctx.arena);
    const TensorView wrong = ctx.arena.allocate("wrong", DType::f32, {kTokens, kVocabulary});
    const TensorView logits = ctx.arena.allocate("logits", dtype, {kTokens, kVocabulary});
    const TensorView loss = ctx.arena.allocate("loss", DType::f32, {kTokens});
    const TensorView finite = ctx.arena.allocate("dlogits", DType::f32, {kTokens, kVocabulary});
    if (wrong.data != nullptr) {
      for (int64_t i = 0; i < wrong.elements(); ++i) wrong.as<float>()[i] = static_cast<float>(i % 17) - 8;
      constexpr float kBad[] = {INFINITY, -INFINITY, NAN};
      constexpr int64_t kPlaces[] = {3, 700, 0, kVocabulary - 1};
      for (int64_t t = 0; t < kTokens; ++t) {
        if (t != 6) wrong.as<float>()[t * kVocabulary + kPlaces[t / 3 % 4]] = kBad[t % 3];
      }
    }
    convert(ctx, {.x = wrong, .y = logits});
    losses(ctx, {.logits = logits, .targets = v["targets"], .loss = loss, .dlogits = logits}, ranks);
    convert(ctx, {.x = logits, .y = finite});
    if (loss.data == nullptr) return;
    for (int64_t t = 0; t < kTokens; ++t) {
      v["loss_is_nan"].as<int32_t>()[t] = std::isnan(loss.as<float>()[t]);
      const float* row = finite.as<float>() + t * kVocabulary;
      v["gradient_is_finite"].as<int32_t>()[t] =
          std::all_of(row, row + kVocabulary, [](float x) { return std::isfinite(x); });
    }
  };
  return c;
}

std::vector<OpCase> cases() {
  std::vector<OpCase> all;
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const Sizes& s : {Sizes{.tokens = 1, .vocabulary = 1},  //
                           Sizes{.tokens = 5, .vocabulary = 259}, Sizes{.tokens = 8, .vocabulary = 1537, .padding = 9},
                           Sizes{.tokens = 4, .vocabulary = 700, .range = 1e4, .supervised = Supervised::all},
                           Sizes{.tokens = 3, .vocabulary = 65, .supervised = Supervised::none},
                           Sizes{.tokens = 2, .vocabulary = 152000, .supervised = Supervised::all}}) {
      all.push_back(loss_only(dtype, s));
      all.push_back(with_gradient(dtype, s));
    }
    for (const Sizes& s :
         {Sizes{.tokens = 5, .vocabulary = 259, .ranks = 1}, Sizes{.tokens = 5, .vocabulary = 259, .ranks = 2},
          Sizes{.tokens = 5, .vocabulary = 5, .ranks = 4},  // the last rank has nothing but padding
          Sizes{.tokens = 8, .vocabulary = 1537, .range = 1e4, .padding = 9, .ranks = 8},
          Sizes{.tokens = 3, .vocabulary = 65, .supervised = Supervised::none, .ranks = 2},
          Sizes{.tokens = 2, .vocabulary = 50257, .supervised = Supervised::all, .ranks = 2}}) {
      all.push_back(loss_only(dtype, s));
      all.push_back(with_gradient(dtype, s));
    }
    all.push_back(differences(dtype, {.tokens = 4, .vocabulary = 61}));
    all.push_back(differences(dtype, {.tokens = 4, .vocabulary = 61, .ranks = 4}));
    for (const int64_t ranks : {0, 2, 4}) all.push_back(not_finite(dtype, ranks));
  }
  all.push_back(with_gradient(DType::bf16, {.tokens = 1024, .vocabulary = 32000}, true));
  return all;
}

const RegisterOpCases registered{cases()};

}  // namespace
}  // namespace yoke
