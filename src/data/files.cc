#include "data/files.h"

#include <fnmatch.h>

#include <algorithm>
#include <set>
#include <span>

#include "base/error.h"

namespace yoke {

namespace fs = std::filesystem;

namespace {

const std::vector<std::string>& endings(Format format) {
  static const std::vector<std::string> text = {".txt", ".text", ".md"};
  static const std::vector<std::string> jsonl = {".jsonl", ".ndjson", ".json"};
  static const std::vector<std::string> tokens = {".tokens", ".bin"};
  return format == Format::text ? text : format == Format::jsonl ? jsonl : tokens;
}

std::string listed(const std::vector<std::string>& words) {
  std::string all;
  for (const std::string& word : words) all.append(all.empty() ? "" : ", ").append(word);
  return all;
}

bool is_file(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool is_real_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(fs::symlink_status(path, error));
}

std::vector<fs::path> entries(const fs::path& folder) {
  std::error_code error;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end; it.increment(error))
    found.push_back(folder / it->path().filename());
  return found;
}

bool hidden(const fs::path& path) { return path.filename().native().starts_with('.'); }

/// Files below `folder`; links to folders are not followed, so there are no loops.
void walk(const fs::path& folder, const std::vector<std::string>& wanted, std::vector<fs::path>& out) {
  for (const fs::path& entry : entries(folder)) {
    if (hidden(entry)) continue;
    if (is_real_folder(entry)) {
      walk(entry, wanted, out);
    } else if (is_file(entry) && std::find(wanted.begin(), wanted.end(), entry.extension().native()) != wanted.end()) {
      out.push_back(entry);
    }
  }
}

bool has_wildcard(const std::string& part) { return part.find_first_of("*?[") != std::string::npos; }

void match(const fs::path& base, std::span<const std::string> parts, std::vector<fs::path>& out) {
  if (parts.empty()) {
    if (is_file(base)) out.push_back(base);
    return;
  }
  const std::string& part = parts.front();
  if (!has_wildcard(part)) return match(base / part, parts.subspan(1), out);
  if (part == "**") {
    match(base, parts.subspan(1), out);
    for (const fs::path& entry : entries(base))
      if (!hidden(entry) && is_real_folder(entry)) match(entry, parts, out);
    // A pattern that ends in ** means all files.
    if (parts.size() == 1)
      for (const fs::path& entry : entries(base))
        if (!hidden(entry) && is_file(entry)) out.push_back(entry);
    return;
  }
  for (const fs::path& entry : entries(base))
    if (fnmatch(part.c_str(), entry.filename().c_str(), FNM_PERIOD) == 0) match(entry, parts.subspan(1), out);
}

std::vector<fs::path> expand(const std::string& pattern, Format format) {
  std::vector<fs::path> found;
  const fs::path path(pattern);
  if (is_file(path)) return {path};
  if (is_folder(path)) {
    walk(path, endings(format), found);
    if (found.empty())
      fail_file(
          "data: the folder '{}' ({}) holds no file that ends in {}, as format '{}' expects. Name the files with "
          "a glob, such as '{}', when they end otherwise.",
          pattern, fs::absolute(path).string(), listed(endings(format)), name_of(format), (path / "**").string());
  } else {
    std::vector<std::string> parts;
    for (const fs::path& part : path.relative_path())
      if (!part.empty()) parts.push_back(part.native());
    match(path.root_path(), parts, found);
    if (found.empty())
      fail_file("data: nothing matches '{}' (looked in {}). Paths are relative to the folder that yoke is started in.",
                pattern, path.is_absolute() ? path.root_path().string() : fs::current_path().string());
  }
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.native() < b.native(); });
  return found;
}

}  // namespace

std::vector<fs::path> expand_patterns(const std::vector<std::string>& patterns, Format format) {
  std::vector<fs::path> files;
  std::set<std::string> seen;
  for (const std::string& pattern : patterns)
    for (fs::path& file : expand(pattern, format))
      if (seen.insert(fs::weakly_canonical(file).native()).second) files.push_back(std::move(file));
  return files;
}

}  // namespace yoke
