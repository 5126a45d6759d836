// Lists of hosts, from command lines and hostfiles.
#include "launch/hosts.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "tests/checkpoint/scratch.h"

namespace yoke {
namespace {

template <class Action>
std::string refusal(Action action) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "";
}

TEST(Hosts, ListsAndFilesSayTheSame) {
  const std::vector<HostSlots> want{{"node1", 4}, {"10.0.0.2", 1}, {"worker-0.job.ns.svc", 16}};
  EXPECT_EQ(parse_hosts("node1:4,10.0.0.2,worker-0.job.ns.svc:16"), want);
  const test::Scratch folder;
  write_file(folder / "hosts", "# ours\nnode1 slots=4 max_slots=8\n\n  10.0.0.2   # one\nworker-0.job.ns.svc:16\n");
  EXPECT_EQ(read_hostfile(folder / "hosts"), want);
  EXPECT_EQ(ranks_of(want), 21);
}

TEST(Hosts, WhatIsNoListIsRefused) {
  for (const char* text :
       {"", ",", "a,", "a,,b", ":4", "a:", "a:0", "a:-1", "a:4x", "a:99999", "-x:1", "a b", "a;b", "a:1:2", "a,b,a"}) {
    EXPECT_NE(refusal([&] { parse_hosts(text); }), "") << text;
  }
  const test::Scratch folder;
  for (const char* text : {"", "# nothing\n", "a slots=0\n", "a slots=x\n", "a 4\n", "a\na\n", "-a slots=1\n"}) {
    write_file(folder / "hosts", text);
    EXPECT_NE(refusal([&] { read_hostfile(folder / "hosts"); }).find((folder / "hosts").string()), std::string::npos)
        << text;
  }
  EXPECT_NE(refusal([&] { read_hostfile(folder / "none"); }), "");
}

}  // namespace
}  // namespace yoke
