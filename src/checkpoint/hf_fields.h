// What yoke knows about the fields of a config.json that aren't part of ModelConfig.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace yoke {

enum class FieldKind {
  handled,     ///< read into ModelConfig
  harmless,    ///< known not to touch the mathematics, or a value that turns nothing on
  fixed,       ///< legal only with the value that turns it off
  suspicious,  ///< unknown, and its name speaks of a part of the model
  unknown,     ///< unknown, and nothing says that it matters
};

struct FieldVerdict {
  FieldKind kind = FieldKind::unknown;
  bool legal = true;
  std::string legal_values;  ///< of a fixed field, for the message: "1 or null"
};

FieldVerdict judge_field(std::string_view name, const nlohmann::json& value);

}  // namespace yoke
