// An argument is the most bytes of a message.
#include <gtest/gtest.h>

#include <cstdlib>

#include "base/log.h"
#include "tests/ranks.h"

namespace yoke::test {

namespace {
std::unique_ptr<Mpi> started;
}

Mpi& mpi() { return *started; }

}  // namespace yoke::test

int main(int argc, char** argv) {
  const auto place = yoke::launched();
  if (place && place->rank != 0) GTEST_FLAG_SET(brief, true);  // one rank tells what passes, all tell what fails
  testing::InitGoogleTest(&argc, argv);
  yoke::log::setup(false);
  try {
    yoke::MpiOptions options;
    if (argc > 1) options.largest_message = std::strtoul(argv[1], nullptr, 10);
    yoke::test::started = yoke::start_mpi(options);
    const int result = RUN_ALL_TESTS();
    yoke::test::mpi().finish();
    return result;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    if (yoke::test::started) yoke::test::mpi().abort(1);
    return 1;
  }
}
