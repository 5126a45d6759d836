#include "plan/catalogue.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>

#include "base/error.h"
#include "train/recipe_rules.h"

namespace yoke {

extern const char* const gpu_catalogue_csv;  // the text of hardware.csv, see cmake/embed.cmake

namespace {

/// Fields of one line; one in quotes may hold commas, and doubled quotes for quotes.
std::vector<std::string> fields_of(std::string_view line) {
  std::vector<std::string> fields(1);
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '"') {
      if (quoted && i + 1 < line.size() && line[i + 1] == '"') {
        fields.back() += line[++i];
      } else {
        quoted = !quoted;
      }
    } else if (line[i] == ',' && !quoted) {
      fields.emplace_back();
    } else {
      fields.back() += line[i];
    }
  }
  YOKE_ASSERT(!quoted, "hardware.csv: a quote without its end in '{}'", line);
  return fields;
}

/// 0 for a blank field.
double number(const std::string& field) {
  if (field.empty()) return 0;
  double value = 0;
  const auto [end, failure] = std::from_chars(field.data(), field.data() + field.size(), value);
  YOKE_ASSERT(failure == std::errc() && end == field.data() + field.size() && value > 0,
              "hardware.csv: '{}' is no positive number", field);
  return value;
}

/// 16 lanes, one way, as their specifications have it.
double pcie_bytes_per_second(int generation) {
  switch (generation) {
    case 3:
      return 15.8e9;
    case 4:
      return 31e9;
    case 5:
      return 63e9;
    default:
      YOKE_ASSERT(false, "hardware.csv: PCIe {}", generation);
  }
}

Gpu gpu_of(const std::map<std::string, std::string, std::less<>>& row) {
  const auto at = [&](const char* column) -> const std::string& {
    const auto field = row.find(column);
    YOKE_ASSERT(field != row.end(), "hardware.csv has no column {}", column);
    return field->second;
  };
  Gpu gpu{.name = at("gpu"),
          .vendor = at("vendor"),
          .multiprocessors = static_cast<int>(number(at("sm_or_cu"))),
          .vendor_gb = number(at("mem_gb")),
          .usable_source = at("usable_source"),
          .bytes_per_second = number(at("mem_bw_gbs")) * 1e9,
          .bf16_flops = number(at("bf16_dense_tflops")) * 1e12,
          .fp16_flops = number(at("fp16_dense_tflops")) * 1e12,
          .fp32_flops = number(at("fp32_tflops")) * 1e12,
          .source = at("source")};
  // A bridge joins two cards, and not every pair has one.
  const std::string& interconnect = at("interconnect");
  if (const double both_ways = number(at("nvlink_bidir_gbs"));
      both_ways > 0 && interconnect.find("bridge") == std::string::npos) {
    gpu.link = interconnect;
    gpu.link_bytes_per_second = both_ways / 2 * 1e9;
  } else {
    const auto generation = static_cast<int>(number(at("pcie_gen")));
    gpu.link = fmt::format("PCIe {}.0 x16", generation);
    gpu.link_bytes_per_second = pcie_bytes_per_second(generation);
  }
  const double usable_mib = number(at("usable_mib"));
  gpu.usable_bytes = static_cast<size_t>(usable_mib > 0 ? usable_mib * 0x1p20 : gpu.vendor_gb * 1e9);
  YOKE_ASSERT(gpu.usable_bytes > 0 && gpu.multiprocessors > 0 && (usable_mib > 0) == !gpu.usable_source.empty(),
              "hardware.csv: the memory of {}", gpu.name);
  return gpu;
}

/// Lower-case letters and digits alone.
std::string key_of(std::string_view name) {
  std::string key;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c))) key += static_cast<char>(std::tolower(c));
  }
  return key;
}

std::vector<std::string> names_of(const std::vector<Gpu>& gpus) {
  std::vector<std::string> names;
  for (const Gpu& gpu : gpus) names.push_back(gpu.name);
  return names;
}

/// The legal name nearest to a mistyped one, whatever the case.
std::string suggestion(std::string_view name, const std::vector<std::string>& names) {
  std::vector<std::string> keys;
  for (const std::string& one : names) keys.push_back(key_of(one));
  const std::string nearest = nearest_name(key_of(name), keys);
  const auto at = std::ranges::find(keys, nearest);
  return at == keys.end() ? "" : fmt::format(" Did you mean '{}'?", names[static_cast<size_t>(at - keys.begin())]);
}

}  // namespace

std::vector<Gpu> read_gpu_catalogue(std::string_view csv) {
  std::vector<Gpu> gpus;
  std::vector<std::string> columns;
  while (!csv.empty()) {
    const size_t end = std::min(csv.find('\n'), csv.size());
    const std::vector<std::string> fields = fields_of(csv.substr(0, end));
    csv.remove_prefix(std::min(end + 1, csv.size()));
    if (columns.empty()) {
      columns = fields;
      continue;
    }
    YOKE_ASSERT(fields.size() == columns.size(), "hardware.csv: '{}' has {} fields", fields[0], fields.size());
    std::map<std::string, std::string, std::less<>> row;
    for (size_t i = 0; i < columns.size(); ++i) row[columns[i]] = fields[i];
    gpus.push_back(gpu_of(row));
  }
  return gpus;
}

std::vector<Gpu> gpu_catalogue() { return read_gpu_catalogue(gpu_catalogue_csv); }

Gpu find_gpu(const std::vector<Gpu>& gpus, std::string_view name) {
  const std::string key = key_of(name);
  std::vector<Gpu> similar;  // those that begin with it, else those that have it anywhere
  bool begins = false;
  for (const Gpu& gpu : gpus) {
    const std::string known = key_of(gpu.name);
    if (key == known || key == key_of(gpu.vendor) + known) return gpu;
    if (key.empty() || known.find(key) == std::string::npos || (begins && !known.starts_with(key))) continue;
    if (!begins && known.starts_with(key)) {
      begins = true;
      similar.clear();
    }
    similar.push_back(gpu);
  }
  if (similar.size() == 1) return similar[0];
  const std::string shown = printable(std::string(name.substr(0, 80)));
  if (similar.size() > 1) {
    fail_usage("--gpu {} can be {}; give one of these names.", shown, fmt::join(names_of(similar), ", "));
  }
  const std::vector<std::string> names = names_of(gpus);
  fail_usage("--gpu {} is no GPU of the catalogue.{} Legal are {}.", shown, suggestion(name, names),
             fmt::join(names, ", "));
}

}  // namespace yoke
