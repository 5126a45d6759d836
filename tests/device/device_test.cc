#include "device/device.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/error.h"
#include "device/context.h"

namespace yoke {
namespace {

TEST(Device, RunsEveryAvailableInstructionSetAndRefusesTheOthers) {
  const auto isas = available_isas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), Isa::generic);
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  for (const Isa isa : {Isa::generic, Isa::avx2, Isa::avx512}) {
    if (std::find(isas.begin(), isas.end(), isa) != isas.end()) {
      EXPECT_EQ(Device::cpu(3, isa).isa(), isa);
      continue;
    }
    try {
      Device::cpu(1, isa);
      FAIL();
    } catch (const UserError& e) {
      EXPECT_NE(std::string(e.what()).find(name_of(isa)), std::string::npos) << e.what();
    }
  }
  EXPECT_EQ(Device::cpu(2).isa(), isas.back());
}

TEST(Device, RefusesThreadCountsBelowOne) {
  for (const int threads : {0, -1}) {
    try {
      Device::cpu(threads);
      FAIL();
    } catch (const UserError& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
    }
  }
}

TEST(Device, DryStandsForAnother) {
  const Device cpu = Device::cpu(5, Isa::generic), dry = Device::dry(cpu);
  EXPECT_TRUE(dry.is_dry());
  EXPECT_FALSE(cpu.is_dry());
  EXPECT_EQ(dry.modelled(), DeviceKind::cpu);
  EXPECT_EQ(dry.threads(), 5);
  EXPECT_EQ(dry.isa(), Isa::generic);
  EXPECT_EQ(cpu.str(), "cpu (generic, 5 threads)");
  EXPECT_NE(dry.str().find("dry"), std::string::npos);
}

TEST(Device, SeesThisMachine) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_GT(available_memory(), size_t{1} << 24);
}

int calls = 0;
void count_call(Context&, const int& by) { calls += by; }

TEST(Launch, RunsOnTheCpuAndOnlyAccountsOnDry) {
  const KernelSet<int> kernels{count_call, count_call, count_call};
  const Device cpu = Device::cpu(1), dry = Device::dry(cpu);
  Arena arena;
  Stream cpu_stream, dry_stream;
  Context on_cpu{cpu, cpu_stream, arena}, on_dry{dry, dry_stream, arena};
  const Cost cost{.flops = 3, .bytes_read = 5, .bytes_written = 7};
  for (int i = 0; i < 2; ++i) launch(on_dry, "count", kernels, 1, cost);
  EXPECT_EQ(calls, 0);
  for (int i = 0; i < 2; ++i) launch(on_cpu, "count", kernels, 1, cost);
  EXPECT_EQ(calls, 2);
  for (const Stream* stream : {&cpu_stream, &dry_stream}) {
    const OpTotals& totals = stream->totals().at("count");
    EXPECT_EQ(totals.calls, 2);
    EXPECT_EQ(totals.flops, 6);
    EXPECT_EQ(totals.bytes, 24);
  }
}

}  // namespace
}  // namespace yoke
