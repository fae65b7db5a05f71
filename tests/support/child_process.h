// A program that a test starts and ends, on loopback, with its output thrown away.
//
//   ChildProcess redis({"redis-server", "--port", std::to_string(port)});
//   redis.signal(SIGSTOP);
#pragma once

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

namespace deepinfer {

class ChildProcess {
 public:
  ChildProcess() = default;
  explicit ChildProcess(const std::vector<std::string>& words) {
    pid_ = ::fork();
    if (pid_ != 0) return;
    std::vector<char*> args;
    for (const std::string& w : words) args.push_back(const_cast<char*>(w.c_str()));
    args.push_back(nullptr);
    const int null = ::open("/dev/null", O_RDWR);
    ::dup2(null, 1);
    ::dup2(null, 2);
    ::execvp(args[0], args.data());
    ::_exit(127);
  }
  ChildProcess(ChildProcess&& other) noexcept : pid_(other.pid_) { other.pid_ = -1; }
  ChildProcess& operator=(ChildProcess&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~ChildProcess() { kill(); }

  void signal(int number) const {
    if (pid_ > 0) ::kill(pid_, number);
  }
  // Exit status, or -1 if it was ended by a signal.
  int wait() {
    int status = 0;
    if (pid_ > 0) ::waitpid(pid_, &status, 0);
    pid_ = -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }
  // False once it has ended by itself.
  bool running() {
    if (pid_ <= 0) return false;
    if (::waitpid(pid_, nullptr, WNOHANG) == 0) return true;
    pid_ = -1;
    return false;
  }
  void kill() {
    if (pid_ <= 0) return;
    signal(SIGCONT);
    signal(SIGKILL);
    wait();
  }

 private:
  pid_t pid_ = -1;
};

// A port of loopback that was free a moment ago, below `max`.
inline int free_port(int max = 65535) {
  static int calls = 0;
  for (int i = ++calls; i < calls + 100; ++i) {
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in a{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    if (max < 65535) a.sin_port = htons(static_cast<uint16_t>(20000 + (::getpid() * 131 + i * 977) % (max - 20000)));
    socklen_t n = sizeof a;
    const bool ok = ::bind(fd, reinterpret_cast<sockaddr*>(&a), n) == 0 &&
                    ::getsockname(fd, reinterpret_cast<sockaddr*>(&a), &n) == 0;
    ::close(fd);
    if (ok) return ntohs(a.sin_port);
  }
  return 0;
}

}  // namespace deepinfer
