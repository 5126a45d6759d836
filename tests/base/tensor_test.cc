#include "base/tensor.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace yoke {
namespace {

constexpr int64_t kHuge = int64_t{1} << 62;

TEST(Shape, CountsRowsAndColumns) {
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ(Shape().rank(), 0);
  const Shape shape{2, 3, 5};
  EXPECT_EQ(shape.elements(), 30);
  EXPECT_EQ(shape.rows(), 6);
  EXPECT_EQ(shape.cols(), 5);
  EXPECT_EQ(shape.str(), "[2, 3, 5]");
  EXPECT_EQ(Shape({4, 0, 7}).elements(), 0);
  EXPECT_EQ(shape, Shape({2, 3, 5}));
  EXPECT_FALSE(shape == Shape({2, 3}));
}

TEST(Shape, ProductsThatOverflowAreNamed) {
  EXPECT_THROW(Shape({kHuge, 2}).elements(), UserError);
  EXPECT_THROW(checked_product(kHuge, 4, "x"), UserError);
  EXPECT_THROW(checked_product(-1, 4, "x"), UserError);
  EXPECT_EQ(checked_product(kHuge, 1, "x"), kHuge);
  EXPECT_EQ(checked_product(0, kHuge, "x"), 0);
  try {
    checked_product(kHuge, 3, "lm_head");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_NE(std::string(e.what()).find("lm_head"), std::string::npos) << e.what();
  }
}

TEST(TensorView, PartsShowTheSameElements) {
  std::vector<int32_t> data(6 * 10);
  std::iota(data.begin(), data.end(), 0);
  const TensorView whole(data.data(), DType::i32, {2, 3, 10});
  EXPECT_EQ(whole.bytes(), data.size() * 4);
  EXPECT_TRUE(whole.contiguous());
  const TensorView part = columns(rows(whole, 1, 4), 3, 5);
  EXPECT_EQ(part.shape, Shape({4, 5}));
  EXPECT_FALSE(part.contiguous());
  for (int64_t r = 0; r < part.rows(); ++r) {
    for (int64_t c = 0; c < part.cols(); ++c) {
      EXPECT_EQ(part.as<int32_t>()[r * part.row_stride + c], (r + 1) * 10 + c + 3);
    }
  }
  const TensorView again = columns(part, 1, 2);
  EXPECT_EQ(again.as<int32_t>()[again.row_stride], 2 * 10 + 4);
  EXPECT_EQ(reshape(whole, {60}).shape, Shape({60}));
}

TEST(TensorView, WithoutDataStaysWithoutData) {
  const TensorView hollow(nullptr, DType::bf16, {8, 16});
  EXPECT_EQ(rows(hollow, 4, 2).data, nullptr);
  EXPECT_EQ(columns(hollow, 4, 2).data, nullptr);
  EXPECT_EQ(columns(hollow, 4, 2).row_stride, 16);
  EXPECT_TRUE(TensorView().absent());
  EXPECT_FALSE(hollow.absent());
  EXPECT_EQ(hollow.str(), "bf16 [8, 16]");
}

using TensorViewDeathTest = testing::Test;
TEST_F(TensorViewDeathTest, PartsOutsideAreOurBugs) {
  const TensorView hollow(nullptr, DType::bf16, {8, 16});
  EXPECT_DEATH(rows(hollow, 7, 2), "internal error");
  EXPECT_DEATH(columns(hollow, -1, 2), "internal error");
  EXPECT_DEATH(reshape(hollow, {5, 16}), "internal error");
  EXPECT_DEATH(reshape(columns(hollow, 0, 8), {64}), "internal error");
}

}  // namespace
}  // namespace yoke
