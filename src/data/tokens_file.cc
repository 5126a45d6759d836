#include "data/tokens_file.h"

#include <bit>
#include <cstring>

#include "base/error.h"

namespace yoke {

static_assert(std::endian::native == std::endian::little, "token files are read in place");

namespace {

constexpr std::string_view kMagic("yoketok\0", 8);
constexpr uint32_t kUnknownEos = 0xffffffffu;
constexpr uint32_t kLlmcMagic2 = 20240520;
constexpr uint32_t kLlmcMagic4 = 20240801;

template <class T>
T number_at(std::string_view bytes, size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

bool parse_llmc(std::string_view start, const std::string& file, TokensHeader& header) {
  if (start.size() < 12) return false;
  const auto magic = number_at<uint32_t>(start, 0);
  if (magic != kLlmcMagic2 && magic != kLlmcMagic4) return false;
  const auto version = number_at<uint32_t>(start, 4);
  if (start.size() < 1024 || version != (magic == kLlmcMagic2 ? 1 : 7))
    fail_file("{}: looks like an llm.c token file, but its header is cut off or of version {}.", file, version);
  header = {1024, magic == kLlmcMagic2 ? 2u : 4u, number_at<uint32_t>(start, 8), -1};
  return true;
}

}  // namespace

TokensHeader parse_tokens_header(std::string_view start, uint64_t file_bytes, int32_t eos, const std::string& file) {
  TokensHeader header;
  if (!parse_llmc(start, file, header)) {
    if (start.size() < 32 || !start.starts_with(kMagic))
      fail_file(
          "{}: is not a token file: it must begin with the 32-byte header of format 'tokens' (or be one of llm.c).",
          file);
    if (const auto version = number_at<uint32_t>(start, 8); version != 1)
      fail_file("{}: is a token file of version {}; only version 1 is known.", file, version);
    header.header_bytes = 32;
    header.token_bytes = number_at<uint32_t>(start, 12);
    header.tokens = number_at<uint64_t>(start, 16);
    const auto file_eos = number_at<uint32_t>(start, 24);
    header.eos = file_eos == kUnknownEos ? -1 : static_cast<int64_t>(file_eos);
  }
  if (header.token_bytes != 2 && header.token_bytes != 4)
    fail_file("{}: its header says {} bytes a token; legal are 2 and 4.", file, header.token_bytes);
  const uint64_t body = file_bytes - header.header_bytes;
  if (body % header.token_bytes != 0 || body / header.token_bytes != header.tokens)
    fail_file("{}: its header says {} tokens of {} bytes, but {} bytes follow it; the file is cut off or damaged.",
              file, header.tokens, header.token_bytes, body);
  if (header.eos >= 0 && header.eos != eos)
    fail_file(
        "{}: its documents end with id {}, but this tokenizer's end-of-sequence id is {}; it was made with another "
        "tokenizer.",
        file, header.eos, eos);
  return header;
}

}  // namespace yoke
