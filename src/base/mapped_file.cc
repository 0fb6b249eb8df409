#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <utility>

#include "base/temporary_path.h"

namespace halfbyte {
namespace {

// What git writes in place of a file that it has not fetched yet.
bool IsGitLfsPointer(std::span<const std::byte> bytes) {
  constexpr std::string_view kStart = "version https://git-lfs.github.com/spec/";
  return bytes.size() >= kStart.size() &&
         std::memcmp(bytes.data(), kStart.data(), kStart.size()) == 0;
}

}  // namespace

Result<MappedFile> MappedFile::Open(const std::filesystem::path& path) {
  // O_NONBLOCK: opening a pipe would wait for somebody to write into it.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return MakeError("{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return MakeError("{}: cannot stat: {}", path.string(), std::strerror(error));
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return MakeError("{}: not a regular file", path.string());
  }
  const size_t size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    ::close(fd);
    return MappedFile(path, nullptr, 0);
  }
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  const int error = errno;
  ::close(fd);
  if (data == MAP_FAILED) {
    return MakeError(error == ENOMEM ? ErrorKind::kMemory : ErrorKind::kInput,
                     "{}: cannot map {} bytes: {}", path.string(), size, std::strerror(error));
  }
  MappedFile file(path, static_cast<const std::byte*>(data), size);
  if (IsGitLfsPointer(file.bytes())) {
    return MakeError(
        "{}: is a Git LFS pointer, not the file it stands for; fetch that with git lfs pull, or "
        "download it again",
        path.string());
  }
  return file;
}

MappedFile::MappedFile(std::filesystem::path path, const std::byte* data, size_t size)
    : path_(std::move(path)), data_(data), size_(size) {}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    Unmap();
    path_ = std::move(other.path_);
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() { Unmap(); }

void MappedFile::Unmap() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

void MappedFile::DropPages(size_t offset, size_t length) const {
  // Outward to what the kernel maps around each page it is asked for, which is up to the largest
  // piece of its cache (2 MiB since Linux 6.16, before that 64 KiB): otherwise every dropped range
  // would leave pages of its neighbours behind. Who still reads there gets them mapped again.
  constexpr size_t kFaultWindow = size_t{2} << 20;
  const size_t begin = offset / kFaultWindow * kFaultWindow;
  const size_t end =
      std::min(size_, (offset + length + kFaultWindow - 1) / kFaultWindow * kFaultWindow);
  if (begin >= end) return;
  ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

namespace {

std::atomic<bool> g_read_truncated = false;

[[noreturn]] void ExitAsTruncated() {
  static constexpr char kMessage[] =
      "halfbyte: a file was truncated while it was being read; restore it and run again\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, kMessage, sizeof(kMessage) - 1);
  RemoveTemporaryPaths();
  ::_exit(1);
}

void PutZeros(void* address) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  void* begin = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) / page * page);
  void* zeros = ::mmap(begin, page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  if (zeros == MAP_FAILED) ExitAsTruncated();
  g_read_truncated = true;
}

void OnTruncation(void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action {};
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = handler;
  ::sigaction(SIGBUS, &action, nullptr);
}

}  // namespace

void ExitWhenAMappedFileIsTruncated() {
  OnTruncation([](int, siginfo_t*, void*) { ExitAsTruncated(); });
}

void ReadZerosWhereAMappedFileIsTruncated() {
  OnTruncation([](int, siginfo_t* info, void*) {
    // What is no such read, broken memory for one, must not go on.
    if (info->si_code != BUS_ADRERR) ExitAsTruncated();
    PutZeros(info->si_addr);
  });
}

bool HasReadTruncatedFiles() { return g_read_truncated; }

}  // namespace halfbyte
