#include "ops/muon/muon.h"

#include <algorithm>
#include <numeric>

#include "ops/matmul/matmul.h"
#include "ops/muon/muon_kernels.h"
#include "ops/sum_squares/sum_squares.h"

namespace yoke {

namespace {

double count_of(const TensorView& t) { return static_cast<double>(t.elements()); }

/// x -> the matrix near x / |x| whose singular values are about 1. `spare` has room for x; `a` and `b` for the square
/// of the smaller side.
void orthogonalise(Context& ctx, const TensorView& x, const TensorView& spare, const TensorView& a_room,
                   const TensorView& b_room, const TensorView& square) {
  const int64_t rows = x.rows(), cols = x.cols(), side = std::min(rows, cols);
  const TensorView a(a_room.data, DType::f32, {side, side}), b(b_room.data, DType::f32, {side, side});
  TensorView from(spare.data, DType::f32, {rows, cols}), to = x;
  sum_squares(ctx, {.x = x, .y = square});
  launch(ctx, "muon_normalise", muon_normalise_kernels, {flat(x), flat(from), square},
         {.flops = count_of(x), .bytes_read = 4 * count_of(x), .bytes_written = 4 * count_of(x)});
  static_assert(kNewtonSchulzSteps % 2 == 1, "the last step has to write x");
  for (int step = 0; step < kNewtonSchulzSteps; ++step) {
    const bool wide = rows <= cols;
    matmul(ctx, {.a = from, .b = from, .c = a, .transpose_a = !wide, .transpose_b = wide});  // [side, side]
    matmul(ctx, {.a = a, .b = a, .c = b});
    launch(ctx, "muon_polynomial", muon_polynomial_kernels,
           {a, b, static_cast<float>(kNewtonSchulz[0]), static_cast<float>(kNewtonSchulz[1]),
            static_cast<float>(kNewtonSchulz[2])},
           {.flops = 3 * count_of(a), .bytes_read = 8 * count_of(a), .bytes_written = 4 * count_of(a)});
    matmul(ctx, {.a = wide ? b : from, .b = wide ? from : b, .c = to});
    std::swap(from, to);
  }
}

}  // namespace

void muon(Context& ctx, const Muon& args) {
  const int64_t rows_count = args.weights.master.rows(), cols = args.weights.master.cols();
  const int64_t count = args.weights.master.elements();
  check_weights("muon", args.weights, count);
  check_gradient("muon", args.gradient, count);
  check_moment("muon", "m", args.m, count);
  YOKE_ASSERT(std::accumulate(args.parts.begin(), args.parts.end(), int64_t{0}) == rows_count, "muon: parts");

  ArenaScope scope(ctx.arena);
  const int64_t largest = *std::max_element(args.parts.begin(), args.parts.end());
  const int64_t side = std::min(largest, cols);
  const TensorView x = ctx.arena.allocate("muon update", DType::f32, {rows_count, cols});
  const TensorView spare = ctx.arena.allocate("muon iterate", DType::f32, {largest, cols});
  const TensorView a = ctx.arena.allocate("muon product", DType::f32, {side, side});
  const TensorView b = ctx.arena.allocate("muon polynomial", DType::f32, {side, side});
  const TensorView square = ctx.arena.allocate("muon norm", DType::f64, {1});

  const double state = bytes_of(args.m);
  launch(ctx, "muon_momentum", muon_momentum_kernels,
         {flat(args.gradient), args.m, flat(x), args.momentum, args.gradient_scale, args.random, &dynamic_map(true)},
         {.flops = 5 * count_of(x),
          .bytes_read = static_cast<double>(args.gradient.bytes()) + state,
          .bytes_written = 4 * count_of(x) + state});
  int64_t first = 0;
  for (const int64_t part : args.parts) {
    orthogonalise(ctx, rows(x, first, part), spare, a, b, square);
    first += part;
  }
  launch(ctx, "muon_apply", muon_apply_kernels,
         {args.weights, x, args.parts, args.learning_rate, args.weight_decay, args.random},
         {.flops = 4 * count_of(x),
          .bytes_read = 4 * count_of(x) + static_cast<double>(args.weights.master.bytes()),
          .bytes_written = bytes_of(args.weights)});
}

}  // namespace yoke
