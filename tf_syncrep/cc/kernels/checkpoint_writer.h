// Writes a parameter server's share of a checkpoint, in a thread of its own.

#ifndef TF_SYNCREP_CC_KERNELS_CHECKPOINT_WRITER_H_
#define TF_SYNCREP_CC_KERNELS_CHECKPOINT_WRITER_H_

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "tensorflow/core/framework/resource_base.h"
#include "tensorflow/core/framework/tensor.h"
#include "tf_syncrep/cc/kernels/table_snapshot.h"
#include "tf_syncrep/cc/tf/table_pieces.h"

namespace tf_syncrep {

struct CheckpointRequest {
  // Of the files to write.
  std::string prefix;
  // Names this checkpoint; empty if no later one will be compared with it.
  std::string token;
  // The checkpoint to compare with, so as to write only rows that have changed
  // since; empty to write all.
  std::string base;
  // Tables with their slots, and how they are parted.
  std::vector<std::shared_ptr<TableSnapshot>> tables;
  std::vector<TablePiece> pieces;
  std::vector<std::pair<std::string, tensorflow::Tensor>> wholes;
  std::shared_ptr<KeptBytes> kept;
  // How fast it may write, so that others get their share of a disk or a
  // network; 0 for as fast as possible.
  double max_bytes_per_sec = 0;
};

struct CheckpointProgress {
  bool done = true;
  absl::Status status;
  int64_t bytes = 0;      // of what was written
  int64_t rows = 0;       // of tables, that were written
  int64_t kept_peak = 0;  // bytes that were kept aside, at most
};

// One on each task. It writes one checkpoint at a time, by TensorFlow's own
// BundleWriter, in pieces of a few MiB. The fingerprint of each row, which
// tells whether it has changed, stays here from one checkpoint to the next.
class CheckpointWriter final : public tensorflow::ResourceBase {
 public:
  CheckpointWriter() = default;
  ~CheckpointWriter() override;

  std::string DebugString() const override { return "CheckpointWriter"; }

  // Returns once the thread runs; the moment of the checkpoint is when the
  // request was made. Errors: FailedPrecondition where one is being written,
  // or `base` is not the last one.
  absl::Status Begin(CheckpointRequest request);

  CheckpointProgress Progress() const;

  // Ends the writing, and returns when the thread has ended.
  void Cancel();

 private:
  using Fingerprints = std::vector<uint64_t>;  // by row

  class Share;

  void Run(CheckpointRequest request);
  absl::Status Write(CheckpointRequest& request);
  int64_t ChunkBytes() const;
  // Waits until as many bytes as were counted may have been written, or the
  // call of Cancel. Returns whether to go on.
  bool AwaitTurn();
  void Count(int64_t bytes, int64_t rows);

  std::mutex calls_;  // guards thread_; taken by callers, never by the thread
  std::thread thread_;
  mutable std::mutex mu_;  // guards the three below
  CheckpointProgress progress_;
  std::shared_ptr<KeptBytes> kept_;
  bool cancelled_ = false;
  std::condition_variable is_cancelled_;
  // Used by the thread alone, and before it runs by whoever starts it.
  std::chrono::steady_clock::time_point began_;
  double max_bytes_per_sec_ = 0;
  std::string fingerprints_of_;  // token
  // By the table, and the first of its rows that is here.
  std::map<std::pair<std::string, int64_t>, Fingerprints> fingerprints_;
};

}  // namespace tf_syncrep

#endif  // TF_SYNCREP_CC_KERNELS_CHECKPOINT_WRITER_H_
