#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "base/error.h"
#include "checkpoint/json.h"
#include "checkpoint/text.h"

namespace yoke {

static_assert(std::endian::native == std::endian::little, "the format is little-endian, and nothing here swaps bytes");

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // the limit of the reference implementation
constexpr size_t kMaxRank = 16;

constexpr std::array<StoredType, 20> kTypes = {{
    {"F32", 32, DType::f32},      {"BF16", 16, DType::bf16},    {"F16", 16, DType::f16},
    {"F64", 64, DType::f64},      {"I32", 32, DType::i32},      {"I64", 64, DType::i64},
    {"U8", 8, DType::u8},         {"I8", 8, std::nullopt},      {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},    {"U32", 32, std::nullopt},    {"U64", 64, std::nullopt},
    {"BOOL", 8, std::nullopt},    {"C64", 64, std::nullopt},    {"F8_E5M2", 8, std::nullopt},
    {"F8_E4M3", 8, std::nullopt}, {"F8_E8M0", 8, std::nullopt}, {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt}, {"F4", 4, std::nullopt},
}};

std::string legal_types() {
  std::string names;
  for (const StoredType& type : kTypes) names += (names.empty() ? "" : ", ") + std::string(type.name);
  return names;
}

/// Collects the header while it is parsed. Whatever doesn't belong ends the parse at once, so that neither depth nor
/// length of a hostile header costs more than the header itself.
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit HeaderReader(std::string_view file) : file_(file) {}

  std::vector<StoredTensor> tensors;
  StoredMetadata metadata;

  bool null() override { return unexpected("null"); }
  bool boolean(bool) override { return unexpected("a boolean"); }
  bool number_integer(number_integer_t value) override { return unexpected(fmt::format("{}", value)); }
  bool number_float(number_float_t, const string_t& text) override { return unexpected(shown(text)); }
  bool binary(binary_t&) override { return unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (level_ != Level::list || value > static_cast<uint64_t>(INT64_MAX)) return unexpected(fmt::format("{}", value));
    if (list_.size() == kMaxRank) fail("{} has more than {} numbers", field_, kMaxRank);
    list_.push_back(static_cast<int64_t>(value));
    return true;
  }

  bool string(string_t& text) override {
    if (level_ == Level::metadata) {
      if (!metadata.emplace(field_, text).second) fail("the key {} appears twice", shown(field_));
      return true;
    }
    if (level_ != Level::tensor || field_ != "dtype") return unexpected("a string");
    const auto* type = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& t) { return t.name == text; });
    if (type == kTypes.end()) fail("dtype is {}; legal are {}", shown(text), legal_types());
    tensor_.type = type;
    return true;
  }

  bool start_object(size_t) override {
    switch (level_) {
      case Level::file:
        level_ = Level::root;
        return true;
      case Level::root:
        level_ = name_ == "__metadata__" ? Level::metadata : Level::tensor;
        tensor_ = {};
        have_shape_ = have_offsets_ = false;
        return true;
      default:
        return unexpected("an object");
    }
  }

  bool key(string_t& text) override {
    if (level_ == Level::root) {
      name_ = text;
      return true;
    }
    if (level_ == Level::tensor) {
      if (text != "dtype" && text != "shape" && text != "data_offsets") {
        fail("has the field {}; legal are dtype, shape and data_offsets", shown(text));
      }
      const bool twice = text == "dtype" ? tensor_.type != nullptr : text == "shape" ? have_shape_ : have_offsets_;
      if (twice) fail("the field {} appears twice", text);
    }
    field_ = text;
    return true;
  }

  bool end_object() override {
    if (level_ == Level::root) {
      level_ = Level::done;
      return true;
    }
    if (level_ == Level::tensor) {
      if (tensor_.type == nullptr || !have_shape_ || !have_offsets_) {
        fail("lacks {}", tensor_.type == nullptr ? "dtype" : have_shape_ ? "data_offsets" : "shape");
      }
      tensor_.name = name_;
      tensors.push_back(std::move(tensor_));
    }
    level_ = Level::root;
    return true;
  }

  bool start_array(size_t) override {
    if (level_ != Level::tensor || field_ == "dtype") return unexpected("a list");
    level_ = Level::list;
    list_.clear();
    return true;
  }

  bool end_array() override {
    level_ = Level::tensor;
    if (field_ == "shape") {
      tensor_.shape = list_;
      have_shape_ = true;
      return true;
    }
    if (list_.size() != 2) fail("data_offsets has {} numbers; legal are 2, begin and end", list_.size());
    tensor_.begin = static_cast<uint64_t>(list_[0]);
    tensor_.end = static_cast<uint64_t>(list_[1]);
    have_offsets_ = true;
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception&) override {
    fail_file("{}: the safetensors header is not valid JSON at byte {}; the file is damaged or of another kind.", file_,
              8 + position);
  }

 private:
  enum class Level { file, root, tensor, list, metadata, done };

  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string what = fmt::format(format, std::forward<Args>(args)...);
    if (level_ == Level::file || level_ == Level::done) fail_file("{}: the safetensors header: {}.", file_, what);
    fail_file("{}: {} {}: {}.", file_, name_ == "__metadata__" ? "entry" : "tensor", shown(name_), what);
  }

  bool unexpected(const std::string& found) const {
    switch (level_) {
      case Level::list:
        fail("{} holds {}; legal are whole numbers from 0 to 2^63 - 1", field_, found);
      case Level::tensor:
        fail("{} is {}; legal is {}", field_, found, field_ == "dtype" ? "a string" : "a list of whole numbers");
      case Level::metadata:
        fail("{} is {}; legal are strings", shown(field_), found);
      case Level::root:
        fail("is {}; legal is an object with dtype, shape and data_offsets", found);
      default:
        fail("is {}; legal is an object", found);
    }
  }

  std::string_view file_;
  Level level_ = Level::file;
  std::string name_, field_;
  StoredTensor tensor_;
  bool have_shape_ = false, have_offsets_ = false;
  std::vector<int64_t> list_;
};

/// Elements x bits has to be the bytes between the offsets.
void check_size(const StoredTensor& tensor, std::string_view file) {
  uint64_t bits = static_cast<uint64_t>(tensor.type->bits);
  for (const int64_t dim : tensor.shape) {
    if (__builtin_mul_overflow(bits, static_cast<uint64_t>(dim), &bits)) {
      fail_file("{}: tensor {}: the shape {} has more elements than can be counted.", file, shown(tensor.name),
                listed(tensor.shape));
    }
  }
  if (tensor.end < tensor.begin || bits % 8 != 0 || bits / 8 != tensor.bytes()) {
    fail_file("{}: tensor {}: {} takes {} bytes, but data_offsets are {} to {}.", file, shown(tensor.name),
              tensor.str(), bits / 8, tensor.begin, tensor.end);
  }
}

void check_layout(std::vector<StoredTensor>& tensors, uint64_t data_bytes, std::string_view file) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t position = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.end > data_bytes) {
      fail_file("{}: tensor {}: ends at byte {} of the data, but the file has only {}; it is cut short or damaged.",
                file, shown(tensor.name), tensor.end, data_bytes);
    }
    check_size(tensor, file);
    if (tensor.begin != position) {
      fail_file("{}: tensor {}: begins at byte {} of the data, but the tensor before it ends at {}; {} are not legal.",
                file, shown(tensor.name), tensor.begin, position, tensor.begin > position ? "holes" : "overlaps");
    }
    position = tensor.end;
  }
  if (position != data_bytes) {
    fail_file("{}: the tensors end at byte {} of the data, but the file has {}; bytes of no tensor are not legal.",
              file, position, data_bytes);
  }
}

}  // namespace

const StoredType& stored_type(DType dtype) {
  const auto* type = std::find_if(kTypes.begin(), kTypes.end(), [&](const auto& t) { return t.dtype == dtype; });
  YOKE_ASSERT(type != kTypes.end());
  return *type;
}

int64_t StoredTensor::elements() const {
  int64_t product = 1;
  for (const int64_t dim : shape) product = checked_product(product, dim, "tensor shape");
  return product;
}

std::string StoredTensor::str() const { return fmt::format("{} {}", type->name, listed(shape)); }

SafetensorsHeader parse_safetensors(std::string_view start, uint64_t file_bytes, std::string_view file) {
  if (start.size() < 8) fail_file("{}: is {} bytes long, too short for a safetensors file.", file, file_bytes);
  uint64_t length = 0;
  std::memcpy(&length, start.data(), sizeof length);
  if (length > kMaxHeader) {
    fail_file("{}: claims a header of {} bytes; at most {} are legal. It isn't a safetensors file, or is damaged.",
              file, length, kMaxHeader);
  }
  if (length > file_bytes - 8 || length > start.size() - 8) {
    fail_file("{}: claims a header of {} bytes, but only {} follow; it is cut short or damaged.", file, length,
              file_bytes - 8);
  }
  const std::string_view json = start.substr(8, length);
  if (json.empty() || json[0] != '{') {
    fail_file("{}: the safetensors header doesn't begin with '{{'; the file is damaged or of another kind.", file);
  }
  HeaderReader reader(file);
  nlohmann::json::sax_parse(json.begin(), json.end(), &reader);
  SafetensorsHeader header{
      .tensors = std::move(reader.tensors), .metadata = std::move(reader.metadata), .data_begin = 8 + length};
  check_layout(header.tensors, file_bytes - header.data_begin, file);
  std::unordered_map<std::string_view, int> names;
  for (const StoredTensor& tensor : header.tensors) {
    if (names[tensor.name]++ > 0) fail_file("{}: has the tensor {} twice.", file, shown(tensor.name));
  }
  return header;
}

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path)
    : path_(path), file_(path), header_(parse_safetensors(file_.text(), file_.size(), path.string())) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

const StoredTensor* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

std::span<const uint8_t> SafetensorsFile::bytes(const StoredTensor& tensor) const {
  return {file_.data() + header_.data_begin + tensor.begin, tensor.bytes()};
}

void SafetensorsFile::release(const StoredTensor& tensor, size_t begin, size_t bytes) const {
  file_.release(header_.data_begin + tensor.begin + begin, bytes);
}

}  // namespace yoke
