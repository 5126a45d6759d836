#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <set>

#include "base/error.h"
#include "checkpoint/convert.h"
#include "checkpoint/hf_model.h"
#include "checkpoint/json.h"
#include "checkpoint/text.h"

namespace yoke {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kHead = "lm_head.weight";

/// Tensor name -> file name of an index file.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const nlohmann::json index = parse_json(read_file(path, size_t{16} << 20), path.string());
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    fail_file("{}: has no weight_map; legal is an object from tensor names to file names.", path.string());
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : index["weight_map"].items()) {
    const std::string file_name = file.is_string() ? file.get<std::string>() : "";
    if (!file_name.ends_with(".safetensors") || file_name.find('/') != file_name.npos || file_name.starts_with('.')) {
      fail_file("{}: {} is in {}; legal are names of .safetensors files of this folder.", path.string(), shown(name),
                file.is_string() ? shown(file_name) : file.type_name());
    }
    files[name] = file_name;
  }
  return files;
}

bool is_float(const StoredTensor& tensor) { return tensor.type->dtype && is_float(*tensor.type->dtype); }

std::vector<int64_t> shape_of(const ParameterRow& row, const ParameterPart& part) {
  if (row.shape.rank() == 1) return {part.rows};
  return {part.rows, row.shape.cols()};
}

/// Older files hold the rotary embedding's frequencies, which follow from the config.
bool is_rotary_buffer(const std::string& name) { return name.ends_with("rotary_emb.inv_freq"); }

void append(std::string* text, const char* kind, const std::vector<std::string>& items) {
  if (!items.empty()) *text += fmt::format("\n  {}: {}", kind, listed(items));
}

}  // namespace

WeightReader::WeightReader(const fs::path& folder, const ParameterTable& table) : table_(table) {
  open(folder);
  const std::string faults = match(folder);
  if (!faults.empty()) fail_file("{}: the weights don't fit config.json:{}", folder.string(), faults);
}

WeightReader::~WeightReader() = default;

void WeightReader::open(const fs::path& folder) {
  if (fs::exists(folder / kSingle)) {
    files_.push_back(std::make_unique<SafetensorsFile>(folder / kSingle));
    return;
  }
  if (!fs::exists(folder / kIndex)) {
    const bool pickled =
        fs::exists(folder / "pytorch_model.bin") || fs::exists(folder / "pytorch_model.bin.index.json");
    fail_file("{}: has neither {} nor {}.{}", folder.string(), kSingle, kIndex,
              pickled ? " Its pytorch_model.bin has to be converted to safetensors first." : "");
  }
  const auto index = read_index(folder / kIndex);
  std::map<std::string, const SafetensorsFile*> opened;
  std::vector<std::string> absent, wrong;
  for (const auto& [name, file] : index) {
    if (opened.contains(file)) continue;
    opened[file] = nullptr;
    if (!fs::exists(folder / file)) {
      absent.push_back(file);
      continue;
    }
    files_.push_back(std::make_unique<SafetensorsFile>(folder / file));
    opened[file] = files_.back().get();
  }
  if (!absent.empty()) {
    fail_file("{}: {} names files that aren't there: {}. Complete the download.", folder.string(), kIndex,
              listed(absent));
  }
  for (const auto& [name, file] : index) {
    if (opened[file]->find(name) == nullptr) wrong.push_back(fmt::format("{} in {}", shown(name), file));
  }
  if (!wrong.empty()) {
    fail_file("{}: {} names tensors that aren't where it says: {}.", folder.string(), kIndex, listed(wrong));
  }
}

std::string WeightReader::match(const fs::path& folder) {
  std::map<std::string, Source> found;
  std::vector<std::string> twice, missing, misshapen, mistyped, unexpected;
  for (const auto& file : files_) {
    for (const StoredTensor& tensor : file->tensors()) {
      if (!found.emplace(tensor.name, Source{file.get(), &tensor}).second) twice.push_back(shown(tensor.name));
    }
  }
  const bool tied = table_.head() == table_.embedding();
  const std::string embedding_name = table_[table_.embedding()].parts[0].name;
  if (tied && found.contains(kHead)) {
    const Source head = found[kHead];
    found.erase(kHead);
    if (!found.contains(embedding_name)) {
      found[embedding_name] = head;  // writers that drop shared tensors may have kept this one
    } else {
      check_tied_head(folder, found[embedding_name], head);
    }
  }
  std::array<int64_t, 256> elements{};
  for (const ParameterRow& row : table_.rows()) {
    auto& sources = sources_.emplace_back();
    for (const ParameterPart& part : row.parts) {
      const auto at = found.find(part.name);
      if (at == found.end()) {
        missing.push_back(part.name);
        continue;
      }
      const StoredTensor& tensor = *at->second.tensor;
      const auto shape = shape_of(row, part);
      if (!is_float(tensor)) {
        mistyped.push_back(fmt::format("{} is {} (legal are F32, BF16, F16, F64)", part.name, tensor.type->name));
      } else if (tensor.shape != shape) {
        misshapen.push_back(fmt::format("{} is {} instead of {}", part.name, listed(tensor.shape), listed(shape)));
      } else {
        elements[static_cast<size_t>(*tensor.type->dtype)] += tensor.elements();
      }
      sources.push_back(at->second);
      found.erase(at);
    }
  }
  for (const auto& [name, source] : found) {
    if (!is_rotary_buffer(name)) unexpected.push_back(shown(name));
  }
  dtype_ = static_cast<DType>(std::max_element(elements.begin(), elements.end()) - elements.begin());
  std::string faults;
  append(&faults, "missing", missing);
  append(&faults, "unexpected", unexpected);
  append(&faults, "wrong shape", misshapen);
  append(&faults, "wrong type", mistyped);
  append(&faults, "in two files", twice);
  if (!tied && missing == std::vector<std::string>{kHead}) {
    faults += "\n  If the head shares the embedding's weights, config.json has to say tie_word_embeddings: true.";
  }
  return faults;
}

void WeightReader::check_tied_head(const fs::path& folder, const Source& embedding, const Source& head) const {
  const StoredTensor &a = *embedding.tensor, &b = *head.tensor;
  bool equal = a.shape == b.shape && is_float(a) && is_float(b);
  if (equal) {
    constexpr int64_t kPiece = 1 << 16;
    std::vector<double> x(kPiece), y(kPiece);
    const uint8_t *from_a = embedding.file->bytes(a).data(), *from_b = head.file->bytes(b).data();
    const DType type_a = *a.type->dtype, type_b = *b.type->dtype;
    const int64_t total = a.elements();
    for (int64_t i = 0; equal && i < total; i += kPiece) {
      const int64_t n = std::min(kPiece, total - i);
      convert_elements(from_a + i * static_cast<int64_t>(size_of(type_a)), type_a, x.data(), DType::f64, n);
      convert_elements(from_b + i * static_cast<int64_t>(size_of(type_b)), type_b, y.data(), DType::f64, n);
      equal = std::memcmp(x.data(), y.data(), static_cast<size_t>(n) * sizeof(double)) == 0;
      embedding.file->release(a, static_cast<size_t>(i) * size_of(type_a), static_cast<size_t>(n) * size_of(type_a));
      head.file->release(b, static_cast<size_t>(i) * size_of(type_b), static_cast<size_t>(n) * size_of(type_b));
    }
  }
  if (!equal) {
    fail_file(
        "{}: lm_head.weight ({}) differs from {} ({}), but config.json says tie_word_embeddings: true. If the model "
        "has "
        "a head of its own, that has to be false; otherwise remove lm_head.weight.",
        folder.string(), b.str(), a.name, a.str());
  }
}

void WeightReader::read(size_t row, const TensorView& destination) const {
  const ParameterRow& spec = table_[row];
  YOKE_ASSERT(destination.shape == spec.shape, "{} into {}", spec.name, destination.str());
  YOKE_ASSERT(is_float(destination.dtype), "{} into {}", spec.name, destination.str());
  const bool flat = spec.shape.rank() == 1 || destination.contiguous();
  const int64_t cols = spec.shape.rank() == 1 ? 1 : spec.shape.cols();
  const auto target_bytes = static_cast<int64_t>(size_of(destination.dtype));
  for (size_t i = 0; i < spec.parts.size(); ++i) {
    const auto [file, tensor] = sources_[row][i];
    const ParameterPart& part = spec.parts[i];
    const DType type = *tensor->type->dtype;
    const auto source_bytes = static_cast<int64_t>(size_of(type));
    const int64_t stride = flat ? cols : destination.row_stride;
    char* to = destination.as<char>() + part.row * stride * target_bytes;
    file->for_each_piece(*tensor, [&](size_t offset, std::span<const uint8_t> bytes) {
      const int64_t first = static_cast<int64_t>(offset) / source_bytes;
      const int64_t end = first + static_cast<int64_t>(bytes.size()) / source_bytes;
      for (int64_t at = first; at < end;) {  // a run that is contiguous in the destination
        const int64_t count = flat ? end - at : std::min(end, (at / cols + 1) * cols) - at;
        convert_elements(bytes.data() + (at - first) * source_bytes, type,
                         to + (at / cols * stride + at % cols) * target_bytes, destination.dtype, count);
        at += count;
      }
    });
  }
}

void WeightReader::read(size_t row, const Region& region, const TensorView& destination) const {
  const ParameterRow& spec = table_[row];
  YOKE_ASSERT(inside(region, spec.shape) && destination.shape == region.shape && destination.contiguous() &&
                  is_float(destination.dtype),
              "{} of {} into {}", region.str(), spec.name, destination.str());
  const auto target_bytes = static_cast<int64_t>(size_of(destination.dtype));
  for (size_t i = 0; i < spec.parts.size(); ++i) {
    const auto [file, tensor] = sources_[row][i];
    const ParameterPart& part = spec.parts[i];
    Region whole{{part.row}, spec.shape.rank() == 1 ? Shape{part.rows} : Shape{part.rows, spec.shape.cols()}};
    const auto box = intersection(region, whole);
    if (!box) continue;
    const DType type = *tensor->type->dtype;
    const auto source_bytes = static_cast<int64_t>(size_of(type));
    const auto piece = static_cast<int64_t>(SafetensorsFile::kPieceBytes) / source_bytes;
    char* to = destination.as<char>() + index_in(region, box->offset) * target_bytes;
    int64_t released = 0;  // elements of the tensor
    for_each_run(*box, whole, [&](int64_t target, int64_t source, int64_t elements) {
      for (int64_t at = 0; at < elements; at += piece) {
        const int64_t count = std::min(piece, elements - at), end = source + at + count;
        convert_elements(file->bytes(*tensor).data() + (source + at) * source_bytes, type,
                         to + (target + at) * target_bytes, destination.dtype, count);
        if (end - released < piece) continue;
        file->release(*tensor, static_cast<size_t>(released * source_bytes),
                      static_cast<size_t>((end - released) * source_bytes));
        released = end;
      }
    });
    file->release(*tensor, static_cast<size_t>(released * source_bytes),
                  tensor->bytes() - static_cast<size_t>(released * source_bytes));
  }
}

}  // namespace yoke
