#include "data/files.h"
#include "data_test_util.h"

namespace yoke {
namespace {

class Files : public DataTest {
 protected:
  std::vector<std::string> names(const std::vector<std::string>& patterns, Format format = Format::text) const {
    std::vector<std::string> full, found;
    for (const std::string& pattern : patterns) full.push_back((folder_ / pattern).string());
    for (const auto& file : expand_patterns(full, format))
      found.push_back(file.lexically_normal().lexically_relative(folder_).string());
    return found;
  }
};

using Names = std::vector<std::string>;

TEST_F(Files, ExpandsFilesGlobsAndFolders) {
  for (const char* name : {"b.txt", "a.txt", "B.txt", "c.md", "x.py", ".hidden.txt", "sub/d.txt", "sub/deep/e.txt",
                           ".git/config.txt", "sub/lines.jsonl", "odd[1].txt"})
    put(name, "x");
  EXPECT_EQ(names({"a.txt"}), Names({"a.txt"}));
  EXPECT_EQ(names({"x.py"}), Names({"x.py"})) << "a file that is named needs no particular ending";
  EXPECT_EQ(names({"*.txt"}), Names({"B.txt", "a.txt", "b.txt", "odd[1].txt"}));
  EXPECT_EQ(names({"[ab].txt"}), Names({"a.txt", "b.txt"}));
  EXPECT_EQ(names({"?.txt"}), Names({"B.txt", "a.txt", "b.txt"}));
  EXPECT_EQ(names({"odd[1].txt"}), Names({"odd[1].txt"})) << "a file that exists is itself, not a glob";
  EXPECT_EQ(names({"**/*.txt"}), Names({"B.txt", "a.txt", "b.txt", "odd[1].txt", "sub/d.txt", "sub/deep/e.txt"}));
  EXPECT_EQ(names({"sub/**"}), Names({"sub/d.txt", "sub/deep/e.txt", "sub/lines.jsonl"}));
  EXPECT_EQ(names({"s*/d*/*.txt"}), Names({"sub/deep/e.txt"}));
  EXPECT_EQ(names({"."}), Names({"B.txt", "a.txt", "b.txt", "c.md", "odd[1].txt", "sub/d.txt", "sub/deep/e.txt"}));
  EXPECT_EQ(names({"sub"}, Format::jsonl), Names({"sub/lines.jsonl"}));
}

TEST_F(Files, KeepsTheOrderOfPatternsAndNamesAFileOnce) {
  for (const char* name : {"a.txt", "b.txt", "c.txt"}) put(name, "x");
  std::filesystem::create_symlink(folder_ / "a.txt", folder_ / "z.txt");
  EXPECT_EQ(names({"c.txt", "*.txt", "./b.txt"}), Names({"c.txt", "a.txt", "b.txt"}));
}

TEST_F(Files, ALoopOfLinksEnds) {
  put("sub/a.txt", "x");
  std::filesystem::create_directory_symlink(folder_, folder_ / "sub" / "up");
  EXPECT_EQ(names({"**/*.txt"}), Names({"sub/a.txt"}));
  EXPECT_EQ(names({"."}), Names({"sub/a.txt"}));
}

TEST_F(Files, NothingFoundSaysWhatWasLookedForAndWhere) {
  put("notes/a.py", "x");
  const std::string none = error_of([&] { names({"*.txt"}); });
  EXPECT_TRUE(holds(none, (folder_ / "*.txt").string()));
  const std::string relative = error_of([] { expand_patterns({"no_such_corpus/*.txt"}, Format::text); });
  EXPECT_TRUE(holds(relative, "no_such_corpus/*.txt"));
  EXPECT_TRUE(holds(relative, std::filesystem::current_path().string()));
  const std::string folder = error_of([&] { names({"notes"}); });
  EXPECT_TRUE(holds(folder, (folder_ / "notes").string()));
  EXPECT_TRUE(holds(folder, ".txt, .text, .md"));
}

}  // namespace
}  // namespace yoke
