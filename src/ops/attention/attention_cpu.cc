#include <omp.h>

#include "ops/attention/attention_tiles.h"

namespace yoke::YOKE_ISA {
namespace {

constexpr float kLog2E = 1.44269504f, kLn2 = 0.69314718f;

template <class T, class Word>
class Forward {
 public:
  Forward(const AttentionForwardKernel& args, float* workspace)
      : args_(args),
        shape_(args.shape),
        group_(shape_.heads / shape_.kv_heads),
        cols_(attention_padded(shape_.head_dim, kLanes)),
        at_(attention_forward_layout(shape_.head_dim, kDepth<Word>)),
        base_(workspace) {}

  /// All keys for the `count` rows from `first` on of a key/value head.
  void run(int64_t batch, int64_t kv_head, int64_t first, int64_t count) {
    const int64_t dim = shape_.head_dim;
    const auto q = head_rows<const T>(args_.q, shape_.queries, batch, kv_head, group_, dim);
    const auto k = head_rows<const T>(args_.k, shape_.keys, batch, kv_head, 1, dim);
    const auto v = head_rows<const T>(args_.v, shape_.keys, batch, kv_head, 1, dim);
    const int32_t* key_begin = args_.key_begin.as<int32_t>() + batch * shape_.queries;
    const int64_t blocks = (count + kRows - 1) / kRows;
    Sight sight[kAttentionSuper];
    for (int64_t b = 0; b < blocks; ++b) {
      const int64_t rows = std::min<int64_t>(kRows, count - b * kRows);
      int32_t *begin = at<int32_t>(at_.begin) + b * kRows, *end = at<int32_t>(at_.end) + b * kRows;
      sight[b] = sight_of(shape_, key_begin, group_, first + b * kRows, rows, begin, end);
      pack_transposed(q, first + b * kRows, rows, at<Word>(at_.q) + b * kRows * dim / kDepth<Word>);
    }
    const int64_t from = sight[0].first(), to = sight[blocks - 1].last() + 1;
    if (args_.merge && from >= to) return;
    std::fill_n(at<float>(at_.top), blocks * kRows, kNever);
    put_zeros(blocks * kRows, at<float>(at_.sum));
    put_zeros(blocks * kRows * cols_, at<float>(at_.o));
    if (args_.merge) read(batch, kv_head, first, count);

    for (int64_t key = from / kKeys * kKeys; key < to; key += kKeys) {
      const int64_t keys = std::min<int64_t>(kKeys, shape_.keys - key);
      pack_rows(k, key, keys, keys + keys % 2, at<Word>(at_.k));
      pack_summed(v, key, keys, cols_, at<Word>(at_.v));
      for (int64_t b = 0; b < blocks; ++b) {
        if (sight[b].first() < key + keys && key <= sight[b].last()) {
          tile(sight[b], b, std::min<int64_t>(kRows, count - b * kRows), key, keys);
        }
      }
    }
    write(batch, kv_head, first, count);
  }

 private:
  template <class U>
  U* at(int64_t offset) const {
    return reinterpret_cast<U*>(base_ + offset);
  }

  void tile(const Sight& sight, int64_t block, int64_t rows, int64_t key, int64_t keys) {
    const TilePart part(sight, key, keys);
    product_of_rows(part, keys, shape_.head_dim, at<Word>(at_.k),
                    at<Word>(at_.q) + block * kRows * shape_.head_dim / kDepth<Word>, at<float>(at_.s));
    if (part.masked) {
      put_zeros(kKeys / kDepth<Word> * kRows, at<Word>(at_.p));
      soften<true>(part, sight, block, key);
    } else {
      soften<false>(part, sight, block, key);
    }
    product_over_keys<Start::scale>(part, rows, cols_, at<Word>(at_.p), at<Word>(at_.v),
                                    at<float>(at_.o) + block * kRows * cols_, at<float>(at_.alpha));
  }

  /// Probabilities of a tile relative to the largest logit so far; the factor that what came before has to be scaled
  /// by.
  template <bool kMasked>
  void soften(const TilePart& part, const Sight& sight, int64_t block, int64_t key) {
    const Lanes scale = splat(shape_.scale * kLog2E);
    for (int64_t v = 0; v < part.vectors; ++v) {
      const int64_t lane = v * kLanes, from = part.from[v], to = part.to[v];
      const float* s = at<float>(at_.s) + lane;
      const auto visible = [&](Lanes x, int64_t j) {
        return kMasked ? keep_between(x, sight.begin + lane, sight.end + lane, static_cast<int32_t>(key + j), kNever)
                       : x;
      };
      Lanes top0 = splat(kNever), top1 = top0;
      for (int64_t j = from; j < to; j += 2) {
        top0 = larger(top0, visible(load(s + j * kRows), j));
        top1 = larger(top1, visible(load(s + (j + 1) * kRows), j + 1));
      }
      float* top = at<float>(at_.top) + block * kRows + lane;
      float* sum = at<float>(at_.sum) + block * kRows + lane;
      const Lanes old = load(top), now = larger(old, larger(top0, top1) * scale);
      Lanes sum0 = splat(0), sum1 = sum0;
      for (int64_t j = from; j < to; j += 2) {
        const Lanes p0 = exp2(visible(multiply_add(load(s + j * kRows), scale, splat(0) - now), j));
        const Lanes p1 = exp2(visible(multiply_add(load(s + (j + 1) * kRows), scale, splat(0) - now), j + 1));
        sum0 = sum0 + p0;
        sum1 = sum1 + p1;
        put_rows_paired(at<Word>(at_.p), j, lane, p0, p1);
      }
      const Lanes alpha = exp2(old - now);
      store(top, now);
      store(sum, multiply_add(load(sum), alpha, sum0 + sum1));
      store(at<float>(at_.alpha) + lane, alpha);
    }
  }

  /// Goes on from the result for other keys: they count as one whose logit is lse and whose value is y.
  void read(int64_t batch, int64_t kv_head, int64_t first, int64_t count) {
    const auto lse = head_rows<float>(args_.lse, shape_.queries, batch, kv_head, group_, 1);
    for_wide_type<T>(args_.y.dtype, [&](auto type) {
      const auto y = head_rows<decltype(type)>(args_.y, shape_.queries, batch, kv_head, group_, shape_.head_dim);
      for (int64_t i = 0; i < count; ++i) {
        if (*lse(first + i) < kNever) continue;
        at<float>(at_.top)[i] = *lse(first + i) * kLog2E;
        at<float>(at_.sum)[i] = 1;
        put_words(y(first + i), shape_.head_dim, at<float>(at_.o) + i * cols_);
      }
    });
  }

  void write(int64_t batch, int64_t kv_head, int64_t first, int64_t count) {
    const float *sum = at<float>(at_.sum), *top = at<float>(at_.top);
    for_wide_type<T>(args_.y.dtype, [&](auto type) {
      const auto y = head_rows<decltype(type)>(args_.y, shape_.queries, batch, kv_head, group_, shape_.head_dim);
      for (int64_t i = 0; i < count; ++i) {
        put_elements(at<float>(at_.o) + i * cols_, sum[i] == 0 ? 0.0f : 1 / sum[i], shape_.head_dim, y(first + i));
      }
    });
    if (args_.lse.data == nullptr) return;
    const auto lse = head_rows<float>(args_.lse, shape_.queries, batch, kv_head, group_, 1);
    for (int64_t i = 0; i < count; ++i) *lse(first + i) = top[i] * kLn2 + ::logf(sum[i]);
  }

  const AttentionForwardKernel& args_;
  const AttentionShape& shape_;
  const int64_t group_, cols_;
  const AttentionForwardLayout at_;
  float* const base_;
};

template <class T, class Word>
void forward(const AttentionForwardKernel& a, int threads) {
  const AttentionShape& s = a.shape;
  const int64_t rows = s.queries * (s.heads / s.kv_heads), heads = s.batch * s.kv_heads;
  // Long pieces share the packing of keys, short ones keep more threads busy.
  int64_t piece_rows = kAttentionSuper * kRows;
  while (piece_rows > kRows && (rows + piece_rows - 1) / piece_rows * heads < 3 * threads) piece_rows /= 2;
  const int64_t pieces = (rows + piece_rows - 1) / piece_rows;
  // The last queries see the most keys: first come the long pieces.
#pragma omp parallel for num_threads(threads) schedule(dynamic)
  for (int64_t task = 0; task < pieces * heads; ++task) {
    const int64_t piece = pieces - 1 - task / heads, head = task % heads;
    Forward<T, Word> work(a, a.workspace.as<float>() + omp_get_thread_num() * a.workspace.cols());
    work.run(head / s.kv_heads, head % s.kv_heads, piece * piece_rows, std::min(piece_rows, rows - piece * piece_rows));
  }
}

}  // namespace

void attention_forward(Context& ctx, const AttentionForwardKernel& a) {
#if defined(__AVX512BF16__)
  if (a.q.dtype == DType::bf16) return forward<bf16, uint32_t>(a, ctx.device.threads());
#endif
  YOKE_FOR_TYPE(a.q.dtype, T, forward<T, float>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
