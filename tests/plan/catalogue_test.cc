// The GPUs that plans know, and what their vendors' gigabytes are worth.
#include "plan/catalogue.h"

#include <set>

#include "tests/checkpoint/scratch.h"

namespace yoke {
namespace {

using test::contains;
using test::error_of;

TEST(Catalogue, EveryRowIsWhole) {
  const std::vector<Gpu> gpus = gpu_catalogue();
  EXPECT_EQ(gpus.size(), 26u);
  std::set<std::string> names;
  for (const Gpu& gpu : gpus) {
    SCOPED_TRACE(gpu.name);
    EXPECT_TRUE(names.insert(gpu.name).second);
    EXPECT_FALSE(gpu.source.empty());
    EXPECT_GT(gpu.bytes_per_second, 1e11);
    EXPECT_GT(gpu.fp16_flops, 1e13);
    EXPECT_GT(gpu.fp32_flops, 1e12);
    EXPECT_EQ(find_gpu(gpus, gpu.name).name, gpu.name);
    EXPECT_EQ(find_gpu(gpus, gpu.vendor + " " + gpu.name).name, gpu.name);
  }
}

// A vendor's GB is between 10^9 bytes and a GiB; with error correction in GDDR it is less than either.
TEST(Catalogue, VendorGigabytesAreNeverGibibytes) {
  for (const Gpu& gpu : gpu_catalogue()) {
    SCOPED_TRACE(gpu.name);
    EXPECT_LT(static_cast<double>(gpu.usable_bytes), gpu.vendor_gb * 0x1p30);
    EXPECT_GT(static_cast<double>(gpu.usable_bytes), gpu.vendor_gb * 0.97e9);
    if (gpu.usable_source.empty()) {
      EXPECT_EQ(gpu.usable_bytes, static_cast<size_t>(gpu.vendor_gb * 1e9));
    }
  }
  const auto usable = [](const char* name) { return find_gpu(gpu_catalogue(), name).usable_bytes; };
  EXPECT_EQ(usable("V100 SXM2 16GB"), 16'000'000'000u);  // nothing published: 14.90 GiB
  EXPECT_EQ(usable("T4"), size_t{14904} << 20);          // published: 14.56 GiB of "16 GB"
  EXPECT_LT(usable("RTX 6000 Ada"), 48'000'000'000u);    // error correction takes a sixteenth
  EXPECT_GT(usable("H100 SXM5"), 80'000'000'000u);       // 79.14 GiB of "80 GB"
  EXPECT_LT(usable("H100 SXM5"), size_t{80} << 30);
}

TEST(Catalogue, NamesInAnySpelling) {
  const std::vector<Gpu> gpus = gpu_catalogue();
  for (const auto& [typed, name] : std::vector<std::pair<const char*, const char*>>{{"h100 sxm5", "H100 SXM5"},
                                                                                    {"H100-SXM5", "H100 SXM5"},
                                                                                    {"nvidia_h100_sxm5", "H100 SXM5"},
                                                                                    {"rtx4090", "RTX 4090"},
                                                                                    {"4090", "RTX 4090"},
                                                                                    {"h200", "H200 SXM"},
                                                                                    {"gh200", "GH200 96GB"},
                                                                                    {"l4", "L4"},
                                                                                    {"AMD mi300x", "MI300X"}}) {
    EXPECT_EQ(find_gpu(gpus, typed).name, name) << typed;
  }
}

TEST(Catalogue, MistypedNamesGetTheNearest) {
  const std::vector<Gpu> gpus = gpu_catalogue();
  const auto message = [&](const char* name) { return error_of([&] { find_gpu(gpus, name); }, ExitCode::usage); };
  EXPECT_CONTAINS(message("RTX 4900"), "Did you mean 'RTX 4090'?");
  EXPECT_CONTAINS(message("h100 sxm4x"), "Did you mean 'H100 SXM5'?");
  EXPECT_CONTAINS(message("toaster"), "Legal are RTX 3090, RTX 4090");
  EXPECT_FALSE(contains(message("toaster"), "Did you mean"));
  EXPECT_CONTAINS(message("h100"), "can be H100 PCIe, H100 SXM5;");
  EXPECT_CONTAINS(message(""), "no GPU of the catalogue");
  EXPECT_LT(message(std::string(100000, 'x').c_str()).size(), 2000u);
}

TEST(Catalogue, QuotedFieldsHoldCommasAndQuotes) {
  const std::vector<Gpu> gpus = read_gpu_catalogue(
      "gpu,vendor,sm_or_cu,mem_gb,usable_mib,usable_source,mem_bw_gbs,bf16_dense_tflops,fp16_dense_tflops,fp32_tflops,"
      "interconnect,nvlink_bidir_gbs,pcie_gen,source\n"
      "\"A \"\"fast\"\" one, small\",V,10,2,,,100,,3,1.5,NVLink bridge,112.5,4,\"a, b\"\n"
      "Other,V,10,2,1900,seen,100,2,3,1.5,NVLink4,900,5,c");
  ASSERT_EQ(gpus.size(), 2u);
  EXPECT_EQ(gpus[0].name, "A \"fast\" one, small");
  EXPECT_EQ(gpus[0].source, "a, b");
  EXPECT_EQ(gpus[0].usable_bytes, 2'000'000'000u);
  EXPECT_EQ(gpus[0].bf16_flops, 0);
  EXPECT_EQ(gpus[1].usable_bytes, size_t{1900} << 20);
  EXPECT_EQ(gpus[1].bf16_flops, 2e12);
  // A bridge is between pairs alone.
  EXPECT_EQ(gpus[0].link_bytes_per_second, 31e9);
  EXPECT_EQ(gpus[1].link_bytes_per_second, 450e9);
}

}  // namespace
}  // namespace yoke
