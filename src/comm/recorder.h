// The flight recorder: what a rank's last collectives were, in a file that outlives the process, however it ends.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace yoke {

enum class FlightState {
  asked,    ///< by the computation
  entered,  ///< the library was called
  done
};

/// A collective as it was recorded.
struct FlightEntry {
  std::string group;  ///< "data", "host" ...
  CollectiveKind kind = CollectiveKind::all_reduce;
  std::string what;  ///< cut after 31 bytes
  int64_t layer = -1;
  uint64_t sequence = 0;  ///< of the group
  int64_t bytes = 0;      ///< of the input; of what is received
  int peer = -1;          ///< rank in the group
  FlightState state = FlightState::asked;
  double asked = 0, entered = 0, done = 0;  ///< seconds since 1970; 0: not yet
};

/// What is in a rank's file.
struct FlightRecord {
  int rank = 0, ranks = 1, process = 0;
  std::string host;
  double begun = 0;                  ///< seconds since 1970
  std::vector<FlightEntry> entries;  ///< oldest first
};

/// "all_reduce 'gradients' of layer 3, number 17 of group data"
std::string describe(CollectiveKind kind, std::string_view what, int64_t layer, uint64_t sequence,
                     std::string_view group);

class FlightRecorder {
 public:
  static constexpr size_t kEntries = 256;

  /// A new file of `rank` in `folder`, which is made where it is missing. UserError (bad_file) when that can't be.
  FlightRecorder(const std::filesystem::path& folder, int rank, int ranks);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;
  ~FlightRecorder();

  /// Numbers entries from 1. By one thread; the number goes to the thread that calls entered() and done().
  uint64_t asked(std::string_view group, uint64_t sequence, const Collective& collective);
  void entered(uint64_t number);
  void done(uint64_t number);

  static std::filesystem::path path(const std::filesystem::path& folder, int rank);

 private:
  friend FlightRecord read_flight_record(const std::filesystem::path& file);
  struct File;
  File* file_ = nullptr;
};

/// UserError (bad_file) when it is no such file or a damaged one. What was being written when the process ended is left
/// out.
FlightRecord read_flight_record(const std::filesystem::path& file);

}  // namespace yoke
