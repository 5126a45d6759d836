// Every collective on every group of every mesh, against values computed here.
#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <random>
#include <thread>

#include "tests/ranks.h"

namespace yoke {
namespace {

using test::mpi;

constexpr std::array kTypes{DType::f32, DType::f64, DType::bf16, DType::f16, DType::i32, DType::i64};

/// What `rank` holds at i: a whole number, so that sums over few ranks are exact in every type.
double value(int rank, int64_t i) { return static_cast<double>((i * 7 + rank * 5) % 13 - 4); }

void put(const TensorView& t, int64_t i, double x) {
  switch (t.dtype) {
    case DType::f32:
      t.as<float>()[i] = static_cast<float>(x);
      break;
    case DType::f64:
      t.as<double>()[i] = x;
      break;
    case DType::bf16:
      t.as<bf16>()[i] = from_float<bf16>(static_cast<float>(x));
      break;
    case DType::f16:
      t.as<f16>()[i] = from_float<f16>(static_cast<float>(x));
      break;
    case DType::i32:
      t.as<int32_t>()[i] = static_cast<int32_t>(x);
      break;
    case DType::i64:
      t.as<int64_t>()[i] = static_cast<int64_t>(x);
      break;
    case DType::u8:
      t.as<uint8_t>()[i] = static_cast<uint8_t>(x + 4);
      break;
  }
}

double get(const TensorView& t, int64_t i) {
  switch (t.dtype) {
    case DType::f32:
      return t.as<float>()[i];
    case DType::f64:
      return t.as<double>()[i];
    case DType::bf16:
      return to_float(t.as<bf16>()[i]);
    case DType::f16:
      return to_float(t.as<f16>()[i]);
    case DType::i32:
      return t.as<int32_t>()[i];
    case DType::i64:
      return static_cast<double>(t.as<int64_t>()[i]);
    case DType::u8:
      return t.as<uint8_t>()[i] - 4.0;
  }
  return 0;
}

/// A tensor with guard bytes around it.
class Guarded {
 public:
  Guarded(DType dtype, int64_t elements) : bytes_(2 * kGuard + static_cast<size_t>(elements) * size_of(dtype), kMark) {
    view = TensorView(bytes_.data() + kGuard, dtype, {elements});
  }
  bool intact() const {
    for (size_t i = 0; i < kGuard; ++i) {
      if (bytes_[i] != kMark || bytes_[bytes_.size() - 1 - i] != kMark) return false;
    }
    return true;
  }
  template <class F>
  void fill(const F& f) {
    for (int64_t i = 0; i < view.elements(); ++i) put(view, i, f(i));
  }
  TensorView view;

 private:
  static constexpr size_t kGuard = 64;
  static constexpr unsigned char kMark = 0xa5;
  std::vector<unsigned char> bytes_;
};

/// One group of this rank, and helpers to run a collective on it.
struct Fixture {
  Communicator& comm;
  std::vector<int> members;
  test::OneThread on;

  template <class F>
  void expect(const Guarded& t, const F& f, const char* what) const {
    int64_t wrong = 0;
    for (int64_t i = 0; i < t.view.elements(); ++i) wrong += get(t.view, i) != f(i);
    EXPECT_EQ(wrong, 0) << what << " " << t.view.str() << " on " << name_of(comm.group()) << " of " << comm.size();
    EXPECT_TRUE(t.intact()) << what;
  }
  double reduced(int64_t i, Reduction reduction) const {
    double y = value(members[0], i);
    for (size_t m = 1; m < members.size(); ++m) {
      const double x = value(members[m], i);
      y = reduction == Reduction::sum ? y + x : std::max(y, x);
    }
    return y;
  }
  double mine(int64_t i) const { return value(members[static_cast<size_t>(comm.rank())], i); }
};

void check_reductions(Fixture& f, DType dtype, int64_t k, Reduction reduction) {
  const int n = f.comm.size(), r = f.comm.rank();
  const auto sum = [&](int64_t i) { return f.reduced(i, reduction); };
  Guarded x(dtype, k);
  x.fill([&](int64_t i) { return f.mine(i); });
  f.comm.run(f.on.ctx, {.kind = CollectiveKind::all_reduce, .input = x.view, .reduction = reduction});
  f.expect(x, sum, "all_reduce");

  Guarded in(dtype, n * k), out(dtype, k);
  in.fill([&](int64_t i) { return f.mine(i); });
  const Collective scatter{.kind = CollectiveKind::reduce_scatter, .input = in.view, .reduction = reduction};
  Collective c = scatter;
  c.output = out.view;
  f.comm.run(f.on.ctx, c);
  const auto piece = [&](int64_t i) { return sum(r * k + i); };
  f.expect(out, piece, "reduce_scatter");
  f.expect(
      in, [&](int64_t i) { return f.mine(i); }, "input of reduce_scatter");
  c.output = rows(reshape(in.view, {n * k, 1}), r * k, k);
  f.comm.run(f.on.ctx, c);
  f.expect(
      in, [&](int64_t i) { return i / k == r && k > 0 ? sum(i) : f.mine(i); }, "reduce_scatter in place");
}

void check_movement(Fixture& f, DType dtype, int64_t k) {
  const int n = f.comm.size(), r = f.comm.rank();
  const auto of = [&](int64_t who, int64_t i) { return value(f.members[static_cast<size_t>(who)], i); };
  Guarded piece(dtype, k), all(dtype, n * k), again(dtype, n * k);
  piece.fill([&](int64_t i) { return f.mine(i); });
  const auto gathered = [&](int64_t i) { return of(i / k, i % k); };
  f.comm.run(f.on.ctx, {.kind = CollectiveKind::all_gather, .input = piece.view, .output = all.view});
  f.expect(all, gathered, "all_gather");
  const TensorView own = rows(reshape(again.view, {n * k, 1}), r * k, k);
  for (int64_t i = 0; i < k; ++i) put(own, i, f.mine(i));
  f.comm.run(f.on.ctx, {.kind = CollectiveKind::all_gather, .input = own, .output = again.view});
  f.expect(again, gathered, "all_gather in place");

  Guarded in(dtype, n * k), out(dtype, n * k);
  in.fill([&](int64_t i) { return f.mine(i); });
  f.comm.run(f.on.ctx, {.kind = CollectiveKind::all_to_all, .input = in.view, .output = out.view});
  f.expect(
      out, [&](int64_t i) { return of(i / k, r * k + i % k); }, "all_to_all");

  for (int root = 0; root < n; ++root) {
    Guarded x(dtype, k);
    x.fill([&](int64_t i) { return f.mine(i); });
    f.comm.run(f.on.ctx, {.kind = CollectiveKind::broadcast, .input = x.view, .peer = root});
    f.expect(
        x, [&](int64_t i) { return of(root, i); }, "broadcast");
  }
}

/// To the next in a ring and to the one before it, both at once; two messages each, and a third on another channel
/// that is received first.
void check_ring(Fixture& f, DType dtype, int64_t k) {
  const int n = f.comm.size(), r = f.comm.rank(), next = (r + 1) % n, before = (r + n - 1) % n;
  const auto of = [&](int who, int64_t i) { return value(f.members[static_cast<size_t>(who)], i); };
  Guarded from_before[2]{{dtype, k}, {dtype, k}}, from_next(dtype, k), other(dtype, k), sent[2]{{dtype, k}, {dtype, k}};
  for (int m = 0; m < 2; ++m) sent[m].fill([&](int64_t i) { return of(r, i + m); });
  const auto send = [&](int peer, const Guarded& x, int channel) {
    return f.comm.start(f.on.ctx, {.kind = CollectiveKind::send, .input = x.view, .peer = peer, .channel = channel});
  };
  const auto receive = [&](int peer, const Guarded& x, int channel) {
    return f.comm.start(f.on.ctx,
                        {.kind = CollectiveKind::receive, .output = x.view, .peer = peer, .channel = channel});
  };
  std::vector<Pending> pending;
  pending.push_back(receive(before, other, 1));
  pending.push_back(send(next, sent[0], 0));
  pending.push_back(send(next, sent[1], 0));
  pending.push_back(send(before, sent[1], 2));
  pending.push_back(send(next, sent[0], 1));
  pending.push_back(receive(next, from_next, 2));
  pending.push_back(receive(before, from_before[0], 0));
  pending.push_back(receive(before, from_before[1], 0));
  f.comm.wait(f.on.ctx, pending.back());
  for (auto it = pending.rbegin(); it != pending.rend(); ++it) f.comm.wait(f.on.ctx, *it);
  for (int m = 0; m < 2; ++m)
    f.expect(
        from_before[m], [&](int64_t i) { return of(before, i + m); }, "send");
  f.expect(
      from_next, [&](int64_t i) { return of(next, i + 1); }, "send");
  f.expect(
      other, [&](int64_t i) { return of(before, i); }, "send");
}

template <class F>
void on_all_groups(const F& check) {
  for (const MeshSizes& sizes : test::all_meshes(mpi().ranks())) {
    const Parallel parallel = mpi().parallel(sizes);
    for (size_t g = 0; g < kGroups; ++g) {
      const auto group = static_cast<Group>(g);
      Fixture f{parallel[group], parallel.mesh().members(group), {}};
      ASSERT_EQ(f.comm.size(), static_cast<int>(f.members.size()));
      ASSERT_EQ(f.members[static_cast<size_t>(f.comm.rank())], mpi().rank());
      check(f);
    }
  }
}

TEST(Collectives, EveryGroupOfEveryMesh) {
  on_all_groups([](Fixture& f) {
    for (DType dtype : kTypes) {
      check_reductions(f, dtype, 37, Reduction::sum);
      check_movement(f, dtype, 37);
      if (!f.comm.alone()) check_ring(f, dtype, 37);
    }
    check_reductions(f, DType::f32, 5, Reduction::max);
    check_movement(f, DType::u8, 3);
  });
}

// Sizes around the borders of chunks: the staging buffers hold 4 MiB each, all-reduces up to 64 KiB take another way.
TEST(Collectives, SizesOfOneGroup) {
  const Parallel parallel = mpi().parallel({.data = mpi().ranks()});
  Fixture f{parallel[Group::data], parallel.mesh().members(Group::data), {}};
  const int64_t n = f.comm.size();
  const int64_t chunk = (int64_t{4} << 20) / std::max<int64_t>(1, n - 1);
  for (int64_t k : {int64_t{0}, int64_t{1}, n - 1, n + 1, int64_t{8191}, int64_t{16385}, chunk / 4, chunk / 4 + 1,
                    chunk / 2, chunk + 3}) {
    check_reductions(f, DType::f32, k, Reduction::sum);
    check_reductions(f, DType::bf16, k, Reduction::max);
    check_movement(f, DType::bf16, k);
    if (n > 1) check_ring(f, DType::f32, k);
  }
}

/// Sums of fractions are those of f32 in the order of ranks, rounded once, on all ranks, whichever way they take.
TEST(Collectives, SumsAreTheSameBitsEverywhere) {
  const Parallel parallel = mpi().parallel({.tensor = mpi().ranks()});
  Fixture f{parallel[Group::tensor], parallel.mesh().members(Group::tensor), {}};
  const auto bits = [](int rank, int64_t i) {
    std::minstd_rand random(static_cast<unsigned>(rank * 7919 + i * 104729 + 1));
    random.discard(3);
    return static_cast<float>(random()) * 0x1p-31f - 0.5f;
  };
  for (int64_t k : {int64_t{100}, int64_t{1} << 20}) {
    for (DType dtype : {DType::f32, DType::bf16, DType::f16}) {
      Guarded x(dtype, k), y(dtype, k);
      x.fill([&](int64_t i) { return bits(f.comm.rank(), i); });
      f.comm.run(f.on.ctx, {.kind = CollectiveKind::all_reduce, .input = x.view});
      for (int64_t i = 0; i < k; ++i) {
        float sum = 0;
        for (int r = 0; r < f.comm.size(); ++r) {
          put(y.view, i, bits(r, i));
          sum = r == 0 ? static_cast<float>(get(y.view, i)) : sum + static_cast<float>(get(y.view, i));
        }
        put(y.view, i, sum);
      }
      EXPECT_EQ(std::memcmp(x.view.data, y.view.data, x.view.bytes()), 0) << name_of(dtype) << " " << k;
    }
  }
}

TEST(Collectives, ManyInFlightOnSeveralGroups) {
  const int n = mpi().ranks();
  const MeshSizes sizes = n % 2 == 0 ? MeshSizes{.data = n / 2, .tensor = 2} : MeshSizes{.data = n};
  const Parallel parallel = mpi().parallel(sizes);
  test::OneThread on;
  constexpr int kEach = 40;
  struct Sum {
    Communicator* comm;
    std::vector<float> x;
    Pending pending;
    double expected;
  };
  std::vector<Sum> sums;
  for (int i = 0; i < kEach; ++i) {
    for (Group group : {Group::world, Group::tensor, Group::shard}) {
      const std::vector<int> members = parallel.mesh().members(group);
      double expected = 0;
      for (int m : members) expected += m + i;
      sums.push_back({&parallel[group],
                      std::vector<float>(i % 5 == 0 ? 50000 : 10, static_cast<float>(mpi().rank() + i)),
                      {},
                      expected});
    }
  }
  for (Sum& s : sums) {
    s.pending = s.comm->start(on.ctx, {.kind = CollectiveKind::all_reduce,
                                       .input = {s.x.data(), DType::f32, {static_cast<int64_t>(s.x.size())}}});
  }
  // Computation goes on meanwhile; the last are waited for first.
  double busy = 0;
  for (int i = 0; i < 1000000; ++i) busy += std::sqrt(static_cast<double>(i));
  EXPECT_GT(busy, 0);
  for (auto s = sums.rbegin(); s != sums.rend(); ++s) s->comm->wait(on.ctx, s->pending);
  for (const Sum& s : sums) {
    for (float x : s.x) ASSERT_EQ(x, s.expected);
  }
}

TEST(Collectives, TrafficIsTheClosedForm) {
  const int n = mpi().ranks();
  const Parallel parallel = mpi().parallel({.data = n});
  Communicator& comm = parallel[Group::data];
  test::OneThread on;
  const int64_t k = 24;
  std::vector<float> a(static_cast<size_t>(n * k)), b(a.size());
  const TensorView piece(a.data(), DType::f32, {k}), all(b.data(), DType::f32, {n * k});
  const TensorView whole(a.data(), DType::f32, {n * k});
  const double bytes = 4.0 * k;
  const auto moved = [&](const Collective& c) {
    comm.clear_traffic();
    comm.run(on.ctx, c);
    return comm.traffic().bytes;
  };
  EXPECT_EQ(moved({.kind = CollectiveKind::all_reduce, .input = whole}), 2 * (n - 1) * bytes);
  EXPECT_EQ(moved({.kind = CollectiveKind::reduce_scatter, .input = whole, .output = {b.data(), DType::f32, {k}}}),
            (n - 1) * bytes);
  EXPECT_EQ(moved({.kind = CollectiveKind::all_gather, .input = piece, .output = all}), (n - 1) * bytes);
  EXPECT_EQ(moved({.kind = CollectiveKind::all_to_all, .input = whole, .output = all}), (n - 1) * bytes);
  EXPECT_EQ(moved({.kind = CollectiveKind::broadcast, .input = piece, .peer = 0}),
            comm.rank() == 0 && n > 1 ? bytes : 0);
}

TEST(Host, WhatARankWaitsForOthersIsCounted) {
  const int n = mpi().ranks();
  const Parallel parallel = mpi().parallel({.data = n});
  const double before = mpi().waited();
  const auto begin = std::chrono::steady_clock::now();
  parallel.host().barrier();
  if (mpi().rank() == n - 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
  parallel.host().barrier();
  const double took = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const double waited = mpi().waited() - before;
  EXPECT_GE(waited, 0);
  EXPECT_LE(waited, took);
  if (mpi().rank() == n - 1) EXPECT_LE(waited, took - 0.1);  // what it slept is nobody's fault
}

TEST(Host, TextsNumbersAndBarriers) {
  const Parallel parallel = mpi().parallel({.pipeline = mpi().ranks()});
  HostGroup& host = parallel.host();
  const int n = mpi().ranks(), r = mpi().rank();
  const auto text_of = [](int rank) {
    return std::string(static_cast<size_t>(rank * 3), static_cast<char>('a' + rank));
  };
  const auto texts = host.all_gather(text_of(r));
  ASSERT_EQ(texts.size(), static_cast<size_t>(n));
  for (int i = 0; i < n; ++i) EXPECT_EQ(texts[static_cast<size_t>(i)], text_of(i));
  EXPECT_EQ(host.all_gather(""), std::vector<std::string>(static_cast<size_t>(n)));
  std::vector<double> x{1, static_cast<double>(r), -static_cast<double>(r)};
  host.all_reduce(x, Reduction::sum);
  EXPECT_EQ(x, (std::vector<double>{1.0 * n, n * (n - 1) / 2.0, -n * (n - 1) / 2.0}));
  x = {static_cast<double>(r), -static_cast<double>(r)};
  host.all_reduce(x, Reduction::max);
  EXPECT_EQ(x, (std::vector<double>{n - 1.0, 0}));
  EXPECT_EQ(host.broadcast(r == 0 ? "the recipe" : "something else"), "the recipe");
  host.barrier();
}

}  // namespace
}  // namespace yoke
