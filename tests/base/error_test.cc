#include "base/error.h"

#include <gtest/gtest.h>

namespace yoke {
namespace {

const std::vector<std::string> kKeys{"learning_rate", "weight_decay", "warmup_steps", "beta1", "seed"};

TEST(NearestName, FindsSlips) {
  EXPECT_EQ(nearest_name("learning_rat", kKeys), "learning_rate");
  EXPECT_EQ(nearest_name("lerning_rate", kKeys), "learning_rate");
  EXPECT_EQ(nearest_name("learning-rate", kKeys), "learning_rate");
  EXPECT_EQ(nearest_name("wieght_decay", kKeys), "weight_decay");
  EXPECT_EQ(nearest_name("warmup", kKeys), "");
  EXPECT_EQ(nearest_name("beta2", kKeys), "beta1");
  EXPECT_EQ(nearest_name("seed", kKeys), "seed");
}

TEST(NearestName, SaysNothingWhenNothingIsNear) {
  EXPECT_EQ(nearest_name("optimizer", kKeys), "");
  EXPECT_EQ(nearest_name("x", {}), "");
  EXPECT_EQ(nearest_name("", kKeys), "");
  EXPECT_EQ(did_you_mean("optimizer", kKeys), "");
  EXPECT_EQ(did_you_mean("sead", kKeys), " Did you mean 'seed'?");
}

TEST(UserError, CarriesMessageAndExitCode) {
  try {
    fail_file("{}: {} bytes", "a.json", 7);
    FAIL();
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::bad_file);
    EXPECT_STREQ(e.what(), "a.json: 7 bytes");
  }
  try {
    fail_usage("{}", "wrong");
    FAIL();
  } catch (const UserError& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
  }
}

}  // namespace
}  // namespace yoke
