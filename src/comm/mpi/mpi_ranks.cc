#include "comm/mpi/mpi_ranks.h"

#include <mpi.h>

#include <cstdlib>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "comm/in_process_ranks.h"

namespace halfbyte {
namespace {

Status ToStatus(int code) {
  if (code == MPI_SUCCESS) return {};
  std::string text(MPI_MAX_ERROR_STRING, '\0');
  int length = 0;
  MPI_Error_string(code, text.data(), &length);
  text.resize(static_cast<size_t>(length));
  return MakeError("the connection between the ranks broke: {}", text);
}

class MpiCommunicator : public Communicator {
 public:
  MpiCommunicator(int rank, int size)
      : Communicator(rank, size),
        counts_(static_cast<size_t>(size)),
        begins_(static_cast<size_t>(size)) {}
  ~MpiCommunicator() override {
    if (!left() || connection_broke()) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
  }

 private:
  Status GatherBytes(std::span<const std::byte> mine, std::span<const int64_t> bytes,
                     std::byte* all) override {
    int64_t total = 0;
    for (size_t r = 0; r < bytes.size(); ++r) {
      // Every rank comes to the same end here: `bytes` is the same on all.
      if (bytes[r] > std::numeric_limits<int>::max() - total) {
        return MakeError("more than 2 GiB in one exchange between ranks: use smaller batches");
      }
      counts_[r] = static_cast<int>(bytes[r]);
      begins_[r] = static_cast<int>(total);
      total += bytes[r];
    }
    return ToStatus(MPI_Allgatherv(mine.data(), static_cast<int>(mine.size()), MPI_BYTE, all,
                                   counts_.data(), begins_.data(), MPI_BYTE, MPI_COMM_WORLD));
  }

  std::vector<int> counts_;
  std::vector<int> begins_;
};

}  // namespace

Result<std::unique_ptr<Communicator>> ConnectRanks() {
  // A process without a launcher would make MPI_Init start one, which takes a moment.
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr && std::getenv("PMIX_RANK") == nullptr) {
    return std::move(InProcessRanks(1).front());
  }
  int provided = 0;
  HB_RETURN_IF_ERROR(ToStatus(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided)));
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0;
  int size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  return std::make_unique<MpiCommunicator>(rank, size);
}

}  // namespace halfbyte
