// `yoke tokenizer train|encode|decode`.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "cli/commands.h"
#include "data/tokenizer/tokenizer.h"
#include "data/tokenizer/tokenizer_trainer.h"

namespace yoke {

namespace {

using Kind = TokenizerTraining::Kind;

std::string read_standard_input() {
  return {std::istreambuf_iterator<char>(std::cin), std::istreambuf_iterator<char>()};
}

void add_train(CLI::App& tokenizer) {
  auto* command = tokenizer.add_subcommand("train", "Train a SentencePiece tokenizer on text files");
  command->footer(
      "Examples:\n"
      "  yoke tokenizer train corpus/*.txt --vocab-size 8000 --output my-tokenizer\n"
      "  yoke tokenizer train book.txt --type unigram --vocab-size 4000 --output my-tokenizer\n"
      "The folder can then be given to `yoke train --model.tokenizer my-tokenizer`.");
  const auto training = std::make_shared<TokenizerTraining>();
  command->add_option("files", training->files, "Text files")->required();
  command->add_option("-o,--output", training->output, "Folder to write")->required();
  command->add_option("--vocab-size", training->vocabulary_size, "Number of tokens, bytes and special tokens included")
      ->capture_default_str();
  command->add_option("--type", training->kind, "bpe or unigram")
      ->transform(CLI::CheckedTransformer(
          std::vector<std::pair<std::string, Kind>>{{"bpe", Kind::bpe}, {"unigram", Kind::unigram}}))
      ->option_text("{bpe,unigram} [bpe]");
  command->add_flag("--byte-fallback,!--no-byte-fallback", training->byte_fallback,
                    "Spell characters outside the vocabulary as bytes (default) or map them to <unk>");
  command->callback([training] {
    train_tokenizer(*training);
    const auto trained = load_tokenizer(training->output);
    fmt::print("{}: {} tokens; begin {}, end {}.\n", (training->output / "tokenizer.model").string(),
               trained->vocabulary_size(), trained->bos().value_or(-1), trained->eos().value_or(-1));
  });
}

void add_encode(CLI::App& tokenizer) {
  struct Options {
    std::string path, text, file;
    bool pieces = false;
  };
  auto* command = tokenizer.add_subcommand("encode", "Print the token ids of a text");
  command->footer(
      "Examples:\n"
      "  yoke tokenizer encode SmolLM2-135M/ --text \"Hello, world\"\n"
      "  yoke tokenizer encode bytes --file README.md\n"
      "  echo Hello | yoke tokenizer encode tokenizer.json --pieces");
  const auto options = std::make_shared<Options>();
  command->add_option("tokenizer", options->path, "`bytes`, a model folder or a tokenizer file")->required();
  auto* text = command->add_option("--text", options->text, "The text; else --file or standard input");
  auto* file = command->add_option("--file", options->file, "A file with the text")->excludes(text);
  command->add_flag("--pieces", options->pieces, "One line a token: its id and the text it stands for");
  command->callback([options, text, file] {
    const auto loaded = load_tokenizer(options->path);
    const std::string input = *text ? options->text : *file ? read_file(options->file) : read_standard_input();
    const auto ids = loaded->encode(input);
    if (!options->pieces) {
      fmt::print("{}\n", fmt::join(ids, " "));
      return;
    }
    for (const int32_t id : ids) fmt::print("{:>8}  {:?}\n", id, loaded->decode(std::vector{id}));
  });
}

void add_decode(CLI::App& tokenizer) {
  struct Options {
    std::string path;
    std::vector<int32_t> ids;
    bool skip_special = false;
  };
  auto* command = tokenizer.add_subcommand("decode", "Print the text of token ids");
  command->footer(
      "Examples:\n"
      "  yoke tokenizer decode SmolLM2-135M/ 19556 28 905\n"
      "  yoke tokenizer encode bytes --text hi | yoke tokenizer decode bytes");
  const auto options = std::make_shared<Options>();
  command->add_option("tokenizer", options->path, "`bytes`, a model folder or a tokenizer file")->required();
  command->add_option("ids", options->ids, "Token ids; else they are read from standard input");
  command->add_flag("--skip-special", options->skip_special, "Leave special tokens out");
  command->callback([options] {
    if (options->ids.empty()) {
      for (std::string word; std::cin >> word;) {
        int64_t id = -1;
        if (!CLI::detail::lexical_cast(word, id) || id < 0 || id > INT32_MAX) fail_usage("'{}' is no token id.", word);
        options->ids.push_back(static_cast<int32_t>(id));
      }
    }
    fmt::print("{}\n", load_tokenizer(options->path)->decode(options->ids, options->skip_special));
  });
}

}  // namespace

void add_tokenizer_command(CLI::App& app) {
  auto* tokenizer = app.add_subcommand("tokenizer", "Train a tokenizer, or try one");
  tokenizer->require_subcommand(1);
  add_train(*tokenizer);
  add_encode(*tokenizer);
  add_decode(*tokenizer);
}

}  // namespace yoke
