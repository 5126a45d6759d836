// What the ranks of a run did last, for people who look for the one that was lost.
#pragma once

#include <filesystem>
#include <string>

namespace yoke {

/// A table of the flight records of `run`, an output folder or its `ranks`: a line a rank with the collective that it
/// was in or had left, its bytes, and how long before the run's last sign of life; then who is behind the others, group
/// by group. `last`: how many collectives of each rank, newest last. UserError (bad_file) where there are no records.
/// Records that can't be read are named in their rank's place.
std::string records_text(const std::filesystem::path& run, int last = 1);

}  // namespace yoke
