#include "cli/completion.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <vector>

#include "base/error.h"

namespace yoke {

namespace {

struct Described {
  std::string name;
  std::string description;
};

/// A command with what may follow it.
struct Place {
  std::string path;  ///< "yoke tokenizer train"
  std::vector<Described> commands;
  std::vector<Described> options;  ///< "--steps"
};

/// Without what shells or their quotes would interpret, and short.
std::string plain(const std::string& text) {
  constexpr size_t kLongest = 70;
  std::string safe;
  for (const char c : text.substr(0, kLongest)) safe += std::string_view("'\"\\`$\n[]:").find(c) < 9 ? ' ' : c;
  return safe;
}

void collect(const CLI::App& app, const std::string& path, std::vector<Place>& places) {
  const size_t at = places.size();
  places.push_back({path, {}, {}});
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      places[at].options.push_back({"--" + name, plain(option->get_description())});
    }
  }
  for (const CLI::App* sub : app.get_subcommands({})) {
    places[at].commands.push_back({sub->get_name(), plain(sub->get_description())});
    collect(*sub, path + " " + sub->get_name(), places);
  }
}

std::string names(const std::vector<Described>& all) {
  std::string joined;
  for (const Described& one : all) joined += (joined.empty() ? "" : " ") + one.name;
  return joined;
}

std::string described(const std::vector<Described>& all) {
  std::string joined;
  for (const Described& one : all) joined += fmt::format(" '{}:{}'", one.name, one.description);
  return joined;
}

/// A `case` pattern of every path to a command but the root's.
std::string path_pattern(const std::vector<Place>& places) {
  std::string pattern;
  for (size_t i = 1; i < places.size(); ++i) pattern += (i > 1 ? "|" : "") + ('"' + places[i].path + '"');
  return pattern.empty() ? "\"\"" : pattern;
}

std::string bash_script(const std::string& root, const std::vector<Place>& places) {
  std::string cases;
  for (const Place& place : places) {
    cases += fmt::format("    \"{}\") commands=\"{}\"; options=\"{}\" ;;\n", place.path, names(place.commands),
                         names(place.options));
  }
  return fmt::format(R"sh(# bash completion for {0}: eval "$({0} completion bash)"
_{0}() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" place={0} commands= options= i
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$place ${{COMP_WORDS[i]}}" in
      {1}) place="$place ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$place" in
{2}  esac
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [[ -n $commands ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$current")
  else
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  fi
}}
complete -o filenames -F _{0} {0}
)sh",
                     root, path_pattern(places), cases);
}

std::string zsh_script(const std::string& root, const std::vector<Place>& places) {
  std::string cases;
  for (const Place& place : places) {
    cases += fmt::format("    \"{}\")\n      commands=({})\n      options=({}) ;;\n", place.path,
                         described(place.commands), described(place.options));
  }
  return fmt::format(R"sh(#compdef {0}
# zsh completion for {0}: source <({0} completion zsh)
_{0}() {{
  local place={0} i
  local -a commands options
  for ((i = 2; i < CURRENT; ++i)); do
    case "$place ${{words[i]}}" in
      {1}) place="$place ${{words[i]}}" ;;
    esac
  done
  case "$place" in
{2}  esac
  if [[ $PREFIX == -* ]]; then
    _describe option options
  elif (( $#commands )); then
    _describe command commands
  else
    _files
  fi
}}
compdef _{0} {0}
)sh",
                     root, path_pattern(places), cases);
}

std::string fish_script(const std::string& root, const std::vector<Place>& places) {
  std::string script = fmt::format(R"sh(# fish completion for {0}: {0} completion fish | source
function __{0}_place
  set -l place {0}
  for word in (commandline -opc)[2..-1]
    switch "$place $word"
      case {1}
        set place "$place $word"
    end
  end
  echo $place
end
)sh",
                                   root, [&] {
                                     std::string pattern = path_pattern(places);
                                     std::replace(pattern.begin(), pattern.end(), '|', ' ');
                                     return pattern;
                                   }());
  for (const Place& place : places) {
    const std::string here = fmt::format("complete -c {} -n 'test (__{}_place) = \"{}\"'", root, root, place.path);
    for (const Described& command : place.commands) {
      script += fmt::format("{} -f -a {} -d '{}'\n", here, command.name, command.description);
    }
    for (const Described& option : place.options) {
      script += fmt::format("{} -l {} -d '{}'\n", here, option.name.substr(2), option.description);
    }
  }
  return script;
}

}  // namespace

std::string completion_script(const CLI::App& root, Shell shell) {
  std::vector<Place> places;
  collect(root, root.get_name(), places);
  switch (shell) {
    case Shell::bash:
      return bash_script(root.get_name(), places);
    case Shell::zsh:
      return zsh_script(root.get_name(), places);
    case Shell::fish:
      return fish_script(root.get_name(), places);
  }
  return "";
}

}  // namespace yoke
