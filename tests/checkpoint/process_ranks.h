// Ranks as processes that only talk on the host, over socket pairs: enough for all that touches files, and each can be
// killed, traced or kept from writing like a real one.
#pragma once

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/error.h"
#include "comm/parallel.h"

namespace yoke::test {

/// Rank 0 has a socket to every other rank, the others have one to rank 0. A rank that is gone is a UserError (lost).
class SocketHost : public HostGroup {
 public:
  explicit SocketHost(std::vector<int> sockets, bool first) : sockets_(std::move(sockets)), first_(first) {}
  SocketHost(const SocketHost&) = delete;
  SocketHost& operator=(const SocketHost&) = delete;
  ~SocketHost() override {
    for (const int socket : sockets_) ::close(socket);
  }

  std::vector<std::string> all_gather(const std::string& text) override {
    if (!first_) {
      send(sockets_[0], text);
      return nlohmann::json::parse(receive(sockets_[0])).get<std::vector<std::string>>();
    }
    std::vector<std::string> all{text};
    for (const int socket : sockets_) all.push_back(receive(socket));
    const std::string packed = nlohmann::json(all).dump();
    for (const int socket : sockets_) send(socket, packed);
    return all;
  }
  void all_reduce(std::span<double>, Reduction) override { YOKE_ASSERT(false, "not for files"); }
  std::string broadcast(const std::string& text) override { return all_gather(text).front(); }
  void barrier() override { all_gather(""); }

 private:
  [[noreturn]] static void lost() { throw UserError(ExitCode::lost_rank, "a rank was lost"); }
  static void send(int socket, const std::string& text) {
    const auto bytes = static_cast<uint64_t>(text.size());
    std::string message(reinterpret_cast<const char*>(&bytes), sizeof bytes);
    message += text;
    for (size_t done = 0; done < message.size();) {
      const ssize_t n = ::send(socket, message.data() + done, message.size() - done, MSG_NOSIGNAL);
      if (n <= 0) lost();
      done += static_cast<size_t>(n);
    }
  }
  static std::string receive(int socket) {
    uint64_t bytes = 0;
    receive(socket, reinterpret_cast<char*>(&bytes), sizeof bytes);
    std::string text(bytes, '\0');
    receive(socket, text.data(), text.size());
    return text;
  }
  static void receive(int socket, char* to, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
      const ssize_t n = ::recv(socket, to + done, bytes - done, 0);
      if (n <= 0) lost();
      done += static_cast<size_t>(n);
    }
  }

  std::vector<int> sockets_;
  bool first_;
};

/// Files need no collectives.
class NoCommunicator : public Communicator {
 public:
  using Communicator::Communicator;

 protected:
  Pending start_shared(Context&, const Collective&) override { YOKE_ASSERT(false, "not for files"); }
  void wait_shared(Context&, const Pending&) override { YOKE_ASSERT(false, "not for files"); }
};

inline Parallel host_only(const Mesh& mesh, std::unique_ptr<HostGroup> host) {
  Parallel::Communicators communicators;
  for (size_t g = 0; g < kGroups; ++g) {
    const std::vector<int> members = mesh.members(static_cast<Group>(g));
    const auto at = std::find(members.begin(), members.end(), mesh.rank()) - members.begin();
    communicators[g] =
        std::make_unique<NoCommunicator>(static_cast<Group>(g), static_cast<int>(at), static_cast<int>(members.size()));
  }
  return {mesh, std::move(communicators), std::move(host)};
}

struct RankEnd {
  int status = 0;       ///< of waitpid
  int code = 0;         ///< exit code of the UserError that ended it; 0: none
  std::string message;  ///< of it
};

/// Runs work(parallel) in a process a rank. `watch(rank, pid)` is called for the process of rank `watched`, which waits
/// for it (as a stopped, traced child where `traced`).
inline std::vector<RankEnd> run_ranks(const MeshSizes& sizes, const std::function<void(const Parallel&)>& work,
                                      int watched = -1, const std::function<void(pid_t)>& watch = {}) {
  const int ranks = sizes.ranks();
  std::vector<std::array<int, 2>> links(static_cast<size_t>(ranks)), results(static_cast<size_t>(ranks));
  for (int r = 0; r < ranks; ++r) {
    const auto i = static_cast<size_t>(r);
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, links[i].data()) != 0 || ::pipe(results[i].data()) != 0) {
      throw std::runtime_error("no sockets");
    }
  }
  std::vector<pid_t> pids;
  for (int r = 0; r < ranks; ++r) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      std::vector<int> sockets;
      for (int other = 1; other < ranks; ++other) {
        auto [at_first, at_other] = links[static_cast<size_t>(other)];
        const bool mine = r == 0 || r == other;
        if (mine) sockets.push_back(r == 0 ? at_first : at_other);
        ::close(r == 0 ? at_other : at_first);
        if (!mine) ::close(at_other);
      }
      RankEnd end;
      try {
        work(host_only(Mesh(sizes, r), std::make_unique<SocketHost>(sockets, r == 0)));
      } catch (const UserError& error) {
        end = {0, static_cast<int>(error.code()), error.what()};
      }
      const std::string text = nlohmann::json{{"code", end.code}, {"message", end.message}}.dump();
      const ssize_t written = ::write(results[static_cast<size_t>(r)][1], text.data(), text.size());
      ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
    }
    pids.push_back(pid);
  }
  for (int r = 0; r < ranks; ++r) {
    const auto i = static_cast<size_t>(r);
    ::close(links[i][0]), ::close(links[i][1]), ::close(results[i][1]);
  }
  if (watch) watch(pids[static_cast<size_t>(watched)]);
  std::vector<RankEnd> ends;
  for (int r = 0; r < ranks; ++r) {
    const auto i = static_cast<size_t>(r);
    RankEnd end;
    std::string text(1 << 16, '\0');
    const ssize_t n = ::read(results[i][0], text.data(), text.size());
    ::close(results[i][0]);
    if (n > 0) {
      const auto json = nlohmann::json::parse(text.substr(0, static_cast<size_t>(n)));
      end.code = json.at("code").get<int>();
      end.message = json.at("message").get<std::string>();
    }
    ::waitpid(pids[i], &end.status, 0);
    ends.push_back(end);
  }
  return ends;
}

}  // namespace yoke::test
