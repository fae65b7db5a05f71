// A peer library measured in the same run: a program that answers one line of JSON per line of JSON it is given.
//
//   std::optional<bench::Peer> peer = bench::Peer::start("build/test-data/recipe-venv", "deepseek-recipe==0.2.0",
//                                                        "bench/peers/recipe_parser.py");
//   if (peer) std::string answer = peer->ask(R"({"file": "..."})");
//
// start() installs the package below build/ if it is not there; without a network there is no peer, which is said on
// standard error and shows as a missing ceiling. Run from the repository root.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <utility>

#include <fmt/format.h>

namespace bench {

class Peer {
 public:
  static std::optional<Peer> start(const std::string& venv, const std::string& packages, const std::string& script) {
    std::FILE* made = popen(fmt::format("tools/test_venv.sh {} {}", venv, packages).c_str(), "r");
    if (made == nullptr) return std::nullopt;
    std::array<char, 4096> line{};
    const bool read = std::fgets(line.data(), line.size(), made) != nullptr;
    if (pclose(made) != 0 || !read) {
      fmt::print(stderr, "NO PEER: {} is not there, so nothing is measured beside it\n", packages);
      return std::nullopt;
    }
    std::string python = line.data();
    python.erase(python.find_last_not_of('\n') + 1);
    int to[2], from[2];
    if (pipe(to) != 0 || pipe(from) != 0) return std::nullopt;
    const pid_t pid = fork();
    if (pid == 0) {
      dup2(to[0], 0);
      dup2(from[1], 1);
      for (int fd : {to[0], to[1], from[0], from[1]}) close(fd);
      execl(python.c_str(), python.c_str(), script.c_str(), nullptr);
      _exit(127);
    }
    close(to[0]);
    close(from[1]);
    return Peer(pid, fdopen(to[1], "w"), fdopen(from[0], "r"));
  }

  Peer(Peer&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)),
        in_(std::exchange(other.in_, nullptr)),
        out_(std::exchange(other.out_, nullptr)) {}
  Peer& operator=(Peer&&) = delete;
  ~Peer() {
    if (pid_ < 0) return;
    std::fclose(in_);
    std::fclose(out_);
    waitpid(pid_, nullptr, 0);
  }

  // Empty if the peer has ended.
  std::string ask(const std::string& job) {
    std::fputs((job + "\n").c_str(), in_);
    std::fflush(in_);
    std::string answer;
    for (int c = std::fgetc(out_); c != EOF && c != '\n'; c = std::fgetc(out_)) answer += static_cast<char>(c);
    return answer;
  }

 private:
  Peer(pid_t pid, std::FILE* in, std::FILE* out) : pid_(pid), in_(in), out_(out) {}
  pid_t pid_;
  std::FILE* in_;
  std::FILE* out_;
};

}  // namespace bench
