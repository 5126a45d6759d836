// GPUs that plans know: src/plan/hardware.csv, which is part of the program. Its `source` column says where a row's
// figures come from, `usable_source` where the memory that programs find comes from.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

struct Gpu {
  std::string name;  ///< "H100 SXM5"
  std::string vendor;
  int multiprocessors = 0;
  double vendor_gb = 0;  ///< as the vendor sells it
  /// What a program finds at most: a published figure, or, where there is none, the vendor's GB as 10^9 bytes, never as
  /// 2^30. Cards whose error correction takes of the memory have less than even that, so they need published figures.
  size_t usable_bytes = 0;
  std::string usable_source;    ///< empty: derived from vendor_gb
  double bytes_per_second = 0;  ///< of the memory, at most
  double bf16_flops = 0;        ///< dense peak a second; 0: the GPU has none
  double fp16_flops = 0;
  double fp32_flops = 0;
  double link_bytes_per_second = 0;  ///< to other GPUs of the node, one way, at most
  std::string link;                  ///< what that is: "NVLink4 + NVSwitch", "PCIe 4.0 x16"
  std::string source;
};

/// The rows of a table with hardware.csv's columns, in its order.
std::vector<Gpu> read_gpu_catalogue(std::string_view csv);
/// The program's own.
std::vector<Gpu> gpu_catalogue();

/// The GPU called `name`, whatever the case, spaces and hyphens, with or without its vendor; or the only one with
/// `name` in its name ("4090"). UserError (usage) with the nearest names, or with all that match.
Gpu find_gpu(const std::vector<Gpu>& gpus, std::string_view name);

}  // namespace yoke
