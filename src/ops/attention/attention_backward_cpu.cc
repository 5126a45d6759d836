#include <omp.h>

#include "ops/attention/attention_tiles.h"

namespace yoke::YOKE_ISA {
namespace {

constexpr float kLog2E = 1.44269504f;

/// The gradients of one key/value head of one batch row, whole or by blocks.
template <class T, class Word>
class Backward {
 public:
  Backward(const AttentionBackwardKernel& args, int64_t batch, int64_t kv_head)
      : args_(args),
        shape_(args.shape),
        batch_(batch),
        kv_head_(kv_head),
        group_(shape_.heads / shape_.kv_heads),
        rows_(shape_.queries * group_),
        cols_(attention_padded(shape_.head_dim, kLanes)),
        words_(shape_.head_dim / kDepth<Word>),
        at_(attention_backward_layout(shape_.head_dim, kDepth<Word>,
                                      args.one_pass ? attention_padded(shape_.keys, kKeys) : kKeys)),
        base_(args.workspace.as<float>() + omp_get_thread_num() * args.workspace.cols()),
        key_begin_(args.key_begin.as<int32_t>() + batch * shape_.queries),
        delta_(args.delta.as<float>() + (batch * shape_.kv_heads + kv_head) * rows_) {}

  /// delta of a block of rows.
  void sum_rows(int64_t first) {
    const auto y = of_queries<const T>(args_.y), dy = of_queries<const T>(args_.dy);
    for (int64_t row = first; row < first + rows_at(first); ++row) {
      const T *a = y(row), *b = dy(row);
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t i = 0; i < shape_.head_dim; ++i) sum += to_float(a[i]) * to_float(b[i]);
      delta_[row] = sum;
    }
  }

  void run_all() {
    load_keys(0, shape_.keys);
    clear_key_sums(shape_.keys);
    for (int64_t row = 0; row < rows_; row += kRows) {
      put_zeros(kRows * cols_, at<float>(at_.dq));
      if (!sees_some(row)) {
        write_queries(row);
        continue;
      }
      const Sight sight = load_rows(row);
      for (int64_t key = sight.first() / kKeys * kKeys; key <= sight.last(); key += kKeys) {
        const TilePart part = tile(sight, key);
        add_to_keys(part, key);
        add_to_queries(part, row, key);
      }
      write_queries(row);
    }
    write_keys(shape_.keys);
  }

  /// dk and dv of one block of keys.
  void run_keys(int64_t key) {
    load_keys(key, keys_at(key));
    clear_key_sums(keys_at(key));
    for (int64_t row = 0; row < rows_; row += kRows) {
      if (last_seen(row) < key || first_seen(row) >= key + keys_at(key)) continue;
      const Sight sight = load_rows(row);
      add_to_keys(tile(sight, key), key);
    }
    write_keys(keys_at(key));
  }

  /// dq of one block of rows.
  void run_queries(int64_t row) {
    put_zeros(kRows * cols_, at<float>(at_.dq));
    if (!sees_some(row)) return write_queries(row);
    const Sight sight = load_rows(row);
    for (int64_t key = sight.first() / kKeys * kKeys; key <= sight.last(); key += kKeys) {
      load_keys(key, keys_at(key));
      add_to_queries(tile(sight, key), row, key);
    }
    write_queries(row);
  }

 private:
  template <class U>
  U* at(int64_t offset) const {
    return reinterpret_cast<U*>(base_ + offset);
  }
  template <class U>
  HeadRows<U> of_queries(const TensorView& t, int64_t dim) const {
    return head_rows<U>(t, shape_.queries, batch_, kv_head_, group_, dim);
  }
  template <class U>
  HeadRows<U> of_queries(const TensorView& t) const {
    return of_queries<U>(t, shape_.head_dim);
  }
  template <class U>
  HeadRows<U> of_keys(const TensorView& t) const {
    return head_rows<U>(t, shape_.keys, batch_, kv_head_, 1, shape_.head_dim);
  }
  int64_t rows_at(int64_t row) const { return std::min<int64_t>(kRows, rows_ - row); }
  int64_t keys_at(int64_t key) const { return std::min<int64_t>(kKeys, shape_.keys - key); }
  int64_t first_seen(int64_t row) const { return first_key(shape_, key_begin_, row / group_); }
  int64_t last_seen(int64_t row) const { return last_key(shape_, (row + rows_at(row) - 1) / group_); }
  bool sees_some(int64_t row) const { return first_seen(row) <= last_seen(row); }

  /// Packs keys and values [first, first + count), which the following calls work on.
  void load_keys(int64_t first, int64_t count) {
    loaded_ = first;
    pack_rows(of_keys<const T>(args_.k), first, count, count + count % 2, at<Word>(at_.k));
    pack_rows(of_keys<const T>(args_.v), first, count, count + count % 2, at<Word>(at_.v));
    pack_summed(of_keys<const T>(args_.k), first, count, cols_, at<Word>(at_.k_along));
  }

  void clear_key_sums(int64_t count) {
    put_zeros(count * cols_, at<float>(at_.dk));
    put_zeros(count * cols_, at<float>(at_.dv));
  }

  Sight load_rows(int64_t row) {
    const int64_t count = rows_at(row);
    const auto q = of_queries<const T>(args_.q), dy = of_queries<const T>(args_.dy);
    pack_transposed(q, row, count, at<Word>(at_.q));
    pack_transposed(dy, row, count, at<Word>(at_.dy));
    pack_summed(q, row, count, cols_, at<Word>(at_.q_along));
    pack_summed(dy, row, count, cols_, at<Word>(at_.dy_along));
    const int64_t packed = (count + kDepth<Word> - 1) / kDepth<Word>, zeros = (kRows / kDepth<Word> - packed) * cols_;
    put_zeros(zeros, at<Word>(at_.q_along) + packed * cols_);
    put_zeros(zeros, at<Word>(at_.dy_along) + packed * cols_);
    const auto lse = of_queries<const float>(args_.lse, 1);
    float *lse2 = at<float>(at_.lse), *delta = at<float>(at_.delta);
    for (int64_t i = 0; i < kRows; ++i) {
      lse2[i] = i < count ? *lse(row + i) * kLog2E : 0;
      delta[i] = i < count ? delta_[row + i] : 0;
    }
    return sight_of(shape_, key_begin_, group_, row, count, at<int32_t>(at_.begin), at<int32_t>(at_.end));
  }

  /// p and ds of the loaded rows and the block of keys at `key`.
  TilePart tile(const Sight& sight, int64_t key) {
    const int64_t keys = keys_at(key), local = key - loaded_;
    const TilePart part(sight, key, keys);
    product_of_rows(part, keys, shape_.head_dim, at<Word>(at_.k) + local * words_, at<Word>(at_.q), at<float>(at_.s));
    product_of_rows(part, keys, shape_.head_dim, at<Word>(at_.v) + local * words_, at<Word>(at_.dy), at<float>(at_.dp));
    if (part.masked) {
      put_zeros(kKeys * kRows / kDepth<Word>, at<Word>(at_.p));
      put_zeros(kKeys * kRows / kDepth<Word>, at<Word>(at_.ds));
      put_zeros(kKeys * kRows / kDepth<Word>, at<Word>(at_.ds_pairs));
      soften<true>(part, sight, key);
    } else {
      soften<false>(part, sight, key);
    }
    return part;
  }

  /// p = exp(s - lse), ds = p (dp - delta).
  template <bool kMasked>
  void soften(const TilePart& part, const Sight& sight, int64_t key) {
    const Lanes scale = splat(shape_.scale * kLog2E);
    for (int64_t v = 0; v < part.vectors; ++v) {
      const int64_t lane = v * kLanes;
      const Lanes lse = splat(0) - load(at<float>(at_.lse) + lane), delta = load(at<float>(at_.delta) + lane);
      const auto probability = [&](int64_t j) {
        Lanes x = multiply_add(load(at<float>(at_.s) + j * kRows + lane), scale, lse);
        if (kMasked) {
          x = keep_between(x, sight.begin + lane, sight.end + lane, static_cast<int32_t>(key + j), kNever);
        }
        return exp2(x);
      };
      for (int64_t j = part.from[v]; j < part.to[v]; j += 2) {
        const Lanes p0 = probability(j), p1 = probability(j + 1);
        const Lanes ds0 = p0 * (load(at<float>(at_.dp) + j * kRows + lane) - delta);
        const Lanes ds1 = p1 * (load(at<float>(at_.dp) + (j + 1) * kRows + lane) - delta);
        put_row(at<Word>(at_.p), j, lane, p0);
        put_row(at<Word>(at_.p), j + 1, lane, p1);
        put_row(at<Word>(at_.ds), j, lane, ds0);
        put_row(at<Word>(at_.ds), j + 1, lane, ds1);
        if constexpr (kDepth<Word> == 2) put_rows_paired(at<Word>(at_.ds_pairs), j, lane, ds0, ds1);
      }
    }
  }

  void add_to_keys(const TilePart& part, int64_t key) {
    const int64_t out = (key - loaded_) * cols_;
    product_over_rows(part, keys_at(key), cols_, at<Word>(at_.p), at<Word>(at_.dy_along), at<float>(at_.dv) + out);
    product_over_rows(part, keys_at(key), cols_, at<Word>(at_.ds), at<Word>(at_.q_along), at<float>(at_.dk) + out);
  }

  void add_to_queries(const TilePart& part, int64_t row, int64_t key) {
    const Word* k = at<Word>(at_.k_along) + (key - loaded_) / kDepth<Word> * cols_;
    product_over_keys<Start::add>(part, rows_at(row), cols_, at<Word>(at_.ds_pairs), k, at<float>(at_.dq), nullptr);
  }

  void write_queries(int64_t row) {
    for_wide_type<T>(args_.dq.dtype, [&](auto type) {
      const auto dq = of_queries<decltype(type)>(args_.dq);
      write_rows(at<float>(at_.dq), shape_.scale, row, rows_at(row), args_.accumulate_queries, dq);
    });
  }

  void write_keys(int64_t count) {
    for_wide_type<T>(args_.dk.dtype, [&](auto type) {
      const auto dk = of_keys<decltype(type)>(args_.dk), dv = of_keys<decltype(type)>(args_.dv);
      write_rows(at<float>(at_.dk), shape_.scale, loaded_, count, args_.accumulate_keys, dk);
      write_rows(at<float>(at_.dv), 1, loaded_, count, args_.accumulate_keys, dv);
    });
  }

  template <class U>
  void write_rows(const float* from, float factor, int64_t first, int64_t count, bool accumulate,
                  const HeadRows<U>& to) {
    for (int64_t i = 0; i < count; ++i, from += cols_) {
      if (accumulate) {
        add_elements(from, factor, shape_.head_dim, to(first + i));
      } else {
        put_elements(from, factor, shape_.head_dim, to(first + i));
      }
    }
  }

  const AttentionBackwardKernel& args_;
  const AttentionShape& shape_;
  const int64_t batch_, kv_head_, group_, rows_, cols_, words_;
  const AttentionBackwardLayout at_;
  float* const base_;
  const int32_t* const key_begin_;
  float* const delta_;
  int64_t loaded_ = 0;  // the key that the packed keys and values begin at
};

template <class T, class Word>
void backward(const AttentionBackwardKernel& a, int threads) {
  const AttentionShape& s = a.shape;
  const int64_t heads = s.batch * s.kv_heads;
  const int64_t row_blocks = (s.queries * (s.heads / s.kv_heads) + kRows - 1) / kRows;
  const int64_t key_blocks = (s.keys + kKeys - 1) / kKeys;
  const auto of = [&](int64_t head) { return Backward<T, Word>(a, head / s.kv_heads, head % s.kv_heads); };
#pragma omp parallel num_threads(threads)
  {
#pragma omp for schedule(static)
    for (int64_t task = 0; task < heads * row_blocks; ++task) of(task / row_blocks).sum_rows(task % row_blocks * kRows);
    if (a.one_pass) {
#pragma omp for schedule(dynamic)
      for (int64_t head = 0; head < heads; ++head) of(head).run_all();
    } else {  // long pieces first: the first keys are seen by the most queries, the last queries see the most keys
#pragma omp for schedule(dynamic) nowait
      for (int64_t task = 0; task < heads * key_blocks; ++task) of(task % heads).run_keys(task / heads * kKeys);
#pragma omp for schedule(dynamic)
      for (int64_t task = 0; task < heads * row_blocks; ++task) {
        of(task % heads).run_queries((row_blocks - 1 - task / heads) * kRows);
      }
    }
  }
}

}  // namespace

void attention_backward(Context& ctx, const AttentionBackwardKernel& a) {
#if defined(__AVX512BF16__)
  if (a.q.dtype == DType::bf16) return backward<bf16, uint32_t>(a, ctx.device.threads());
#endif
  YOKE_FOR_TYPE(a.q.dtype, T, backward<T, float>(a, ctx.device.threads()));
}

}  // namespace yoke::YOKE_ISA
